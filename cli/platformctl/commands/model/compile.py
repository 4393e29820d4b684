"""`platformctl compile PATH`: exec the predictor's compiler; run it on the hardware that will serve."""

import click

from platformctl import output, targets


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def compile(words: tuple[str, ...]) -> None:  # noqa: A001 - the verb's name
    """Compile a torch model, so that it starts without torch."""
    output_flag = ["-o", output.chosen()] if output.chosen() else []
    targets.become("compile", "compile", *output_flag, *words)
