"""`platformctl fetch URI DIR`: exec the predictor's downloader, which init containers run too."""

import click

from platformctl import output, targets


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def fetch(words: tuple[str, ...]) -> None:
    """Download a model from a URI into a directory."""
    output_flag = ["-o", output.chosen()] if output.chosen() else []  # first: an -o among the words wins
    targets.become("fetch", "fetch", *output_flag, *words)
