"""The only place that prints. Data goes to stdout, everything said about it to stderr; colour only on a terminal."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def data(value: Any, lines: Iterable[str]) -> None:
    """A command's result: `value` with -o json, else `lines`."""
    if click.get_current_context().meta.get("output") == "json":
        click.echo(json.dumps(value, indent=2))
    else:
        for line in lines:
            click.echo(line)


def note(text: str) -> None:
    """Something a person wants to know and a pipe does not."""
    click.echo(text, err=True)


def heading(text: str) -> None:
    click.echo(click.style(text, bold=True), err=True)


def error(text: str, hint: str = "") -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _remember(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        context.meta["output"] = value


def output_option(command: F) -> F:
    """-o on a command, and the same on the whole program: the nearer one holds."""
    option = click.option(
        "-o", "--output", type=click.Choice(["table", "json"]), expose_value=False, callback=_remember,
        help="How data is printed.",
    )  # fmt: skip
    return option(command)
