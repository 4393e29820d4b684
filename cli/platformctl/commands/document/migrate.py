"""`platformctl migrate triton`: an InferenceService from a Triton server's repository and command line."""

from dataclasses import replace
from pathlib import Path

import click

from platformctl import output
from platformctl.services import model_argument, scaffold


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("server", type=click.Choice(["triton"]))
@click.argument("command", metavar="[REPOSITORY] [FLAGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="Name of the service (default: from the repository).")
@click.option("--to", "file", default="service.yaml", show_default=True, help="File to write; - is stdout.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def migrate(
    server: str,
    command: tuple[str, ...], name: str | None, file: str, force: bool,
) -> None:  # fmt: skip
    """Write the InferenceService that replaces a Triton server, and print what will differ.

    REPOSITORY is its model repository, a folder or URI; FLAGS are those of its command line, which may name it too.

    Example: platformctl migrate triton ./repository --name flowers
    """
    from platformctl.services.triton_migration import migrate as migration_of  # the predictor's readers: 0.1 s

    migration = migration_of(command)
    described = model_argument.describe(migration.repository, model_format="triton")
    if file != "-" and Path(file).exists() and not force:
        raise click.UsageError(f"{file} exists; choose another with --to, or overwrite it with --force")
    if not Path(file).parent.is_dir():
        raise click.UsageError(f"{Path(file).parent} is no folder; create it, or choose another file with --to")
    model = replace(
        described, uri=model_argument.seen_from(described.uri, file), name=name or described.name,
        arguments=migration.arguments, protocol=migration.protocol,
    )  # fmt: skip
    answers = scaffold.Answers(gpus=1 if migration.gpu else 0)
    mode, reason = scaffold.recommend(answers)
    text = scaffold.document(model, answers, mode, reason, file, "local")
    if file == "-":
        output.text(text)
    else:
        Path(file).write_text(text, encoding="utf-8")
        output.text(f"{file}\n")
    for difference in migration.differences:
        output.note(f"differs: {difference}")
    output.note("every difference in responses: docs/how-to/migrate-triton.md")
