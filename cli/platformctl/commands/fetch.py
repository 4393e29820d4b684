"""`platformctl fetch URI DIR`: becomes the predictor's own download command, the one that init containers run."""

import click

from platformctl import output, predictor


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def fetch(words: tuple[str, ...]) -> None:
    """Download a model from a URI into a directory."""
    wanted = ["-o", output.chosen()] if output.chosen() else []  # first, so that one after the verb holds
    predictor.become("fetch", "fetch", *wanted, *words)
