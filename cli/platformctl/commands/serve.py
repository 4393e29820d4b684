"""`platformctl serve FLAGS`: becomes the predictor, which reads the flags itself."""

import os
import sys

import click


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Serve models; all flags are the predictor's (docs/settings.md)."""
    os.execv(sys.executable, [sys.executable, "-m", "pilotlight_predictor", *flags])  # noqa: S606 - itself, no shell
