"""`platformctl serve FLAGS`: exec the predictor, which reads the flags itself."""

import click

from platformctl import output, targets


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Serve models; all flags are the predictor's (docs/settings.md)."""
    if output.chosen() or any(flag.partition("=")[0] in ("-o", "--output") for flag in flags):
        raise click.UsageError("serve prints no data, so it has no -o; --log-format json makes its log JSON")
    targets.become("serve", *flags)
