"""`platformctl migrate triton`: an InferenceService from a Triton server's repository and command line."""

from dataclasses import replace
from pathlib import Path

import click

from platformctl import output
from platformctl.services import model_argument, scaffold


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("server", type=click.Choice(["triton"]))
@click.argument("repository")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="Name of the service (default: from the repository).")
@click.option("--to", "file", default="service.yaml", show_default=True, help="File to write; - is stdout.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def migrate(
    server: str,
    repository: str, flags: tuple[str, ...], name: str | None, file: str, force: bool,
) -> None:  # fmt: skip
    """Write the InferenceService that replaces a Triton server, and print what will differ.

    REPOSITORY is its model repository, a folder or URI; FLAGS are those of its command line.

    Example: platformctl migrate triton ./repository --name flowers
    """
    from platformctl.services.triton_migration import migrate as migration_of  # the predictor's readers: 0.1 s

    if file != "-" and Path(file).exists() and not force:
        raise click.UsageError(f"{file} exists; choose another with --to, or overwrite it with --force")
    migration = migration_of(repository, flags)
    described = model_argument.describe(repository, model_format="triton")
    model = replace(
        described, uri=model_argument.seen_from(described.uri, file), name=name or described.name,
        arguments=migration.arguments,
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
