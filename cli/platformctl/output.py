"""The only place that prints. Data goes to stdout, everything said about it to stderr; colour only on a terminal."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pilotlight.spec.problems import Problem

F = TypeVar("F", bound=Callable[..., Any])

# Everything that some verb can print; each names its own with `formats`, the first of which is its default.
FORMATS = ("table", "json", "yaml")
SEVERITIES = {"error": "red", "warning": "yellow", "info": "cyan"}
DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def chosen() -> str:
    """The format of the running command; empty where its default holds."""
    return str(click.get_current_context().meta.get("output", ""))


def data(value: Any, lines: Iterable[str]) -> None:
    """A command's result: `value` with -o json or yaml, else `lines`."""
    if chosen() == "json":
        import json

        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif chosen() == "yaml":
        from pilotlight.manifests import Manifest, to_yaml

        click.echo(to_yaml([Manifest(value)]).removeprefix("---\n"), nl=False)
    else:
        for line in lines:
            click.echo(line)


def text(whole: str) -> None:
    """Data that is a text already, such as manifests."""
    click.echo(whole, nl=False)


def note(sentence: str) -> None:
    """Something a person wants to know and a pipe does not."""
    click.echo(sentence, err=True)


def heading(title: str) -> None:
    click.echo(click.style(title, bold=True), err=True)


def error(sentence: str, hint: str = "") -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {sentence}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)


def problems(found: "Iterable[Problem]") -> None:
    """Every problem on a line of its own with its place, as editors follow it. Warnings are numbered."""
    number = 0
    for problem in found:
        number += problem.severity == "warning"
        counted = f"[{number}] " if problem.severity == "warning" else ""
        click.echo(counted + severity_coloured(str(problem), problem.severity), err=True)


def severity_coloured(line: str, severity: str) -> str:
    """`file:1:2: error PL101: …` with the word of the severity in its colour."""
    before, word, after = line.partition(f"{severity} ")
    return before + click.style(word.rstrip(), fg=SEVERITIES[severity], bold=True) + " " + after if word else line


def diff_coloured(line: str) -> str:
    colour = DIFF_COLOURS.get(line[:1])
    return click.style(line, fg=colour) if colour else line


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def formats(*names: str) -> Callable[[F], F]:
    """-o on a command, and the same on the whole program: the nearer one holds, if the command knows it."""

    def remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        wanted = value or context.meta.get("output")
        if wanted and wanted not in names:
            raise click.BadParameter(f"{wanted} is not one of {', '.join(names)}", context, parameter)
        if wanted:
            context.meta["output"] = wanted

    return click.option(
        "-o", "--output", type=click.Choice(names), expose_value=False, callback=remember,
        help=f"How data is printed; {names[0]} unless told.",
    )  # fmt: skip


output_option = formats("table", "json")
