"""The only place that prints. Data goes to stdout, everything said about it to stderr; colour only on a terminal."""

import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pilotlight.spec.problems import Problem

F = TypeVar("F", bound=Callable[..., Any])

# Everything that some verb can print; each names its own with `formats`, the first of which is its default.
START = time.monotonic()  # of this program, from which elapsed time is told
FORMATS = ("table", "json", "yaml", "wide", "name", "url")
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


def flowing(line: str) -> None:
    """One line of data that goes on, such as a log's; it must reach a pipe at once."""
    click.echo(line)
    sys.stdout.flush()


def text(whole: str) -> None:
    """Data that is a text already, such as manifests."""
    click.echo(whole, nl=False)


def note(sentence: str) -> None:
    """Something a person wants to know and a pipe does not."""
    click.echo(sentence, err=True)


def page_break() -> None:
    """Between two states of the same thing: on a terminal the later one takes the place of the earlier."""
    if sys.stdout.isatty():
        click.clear()
    else:
        click.echo()


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


class Ticker:
    """Lines of `elapsed  phase  message` about work that goes on, each when it changes.

    On a terminal the amount that goes with a line is redrawn in place; elsewhere it is left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, start: float = START) -> None:
        self._clock = clock
        self._start = start
        self._last = dict[Hashable, str]()
        self._amount = ""
        self._terminal = sys.stderr.isatty()

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    def say(self, phase: str, message: str, amount: str = "", of: Hashable = None) -> None:
        """`of`: what the line is about, where several things go on at once."""
        said = f"{phase:<11} {message}"
        if said != self._last.get(of):
            self._end_line()
            self._last[of] = said
            click.echo(f"{self.elapsed:6.1f}s  {said}", err=True, nl=not (amount and self._terminal))
        if amount and self._terminal and amount != self._amount:
            click.echo(f"\r\x1b[K{self.elapsed:6.1f}s  {said}  {amount}", err=True, nl=False)
            self._amount = amount

    def close(self) -> None:
        self._end_line()

    def _end_line(self) -> None:
        if self._amount:
            click.echo(err=True)
        self._amount = ""


def bar(done: int, total: int, width: int = 24) -> str:
    """`[######------]  41 of 100 MiB`."""
    filled = min(width, width * done // total) if total else 0
    return f"[{'#' * filled}{'-' * (width - filled)}] {size(done)} of {size(total)}"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")


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
