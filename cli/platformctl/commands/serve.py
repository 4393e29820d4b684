"""`platformctl serve FLAGS`: becomes the predictor, which reads the flags itself."""

import click

from platformctl import predictor


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Serve models; all flags are the predictor's (docs/settings.md)."""
    predictor.become(*flags)
