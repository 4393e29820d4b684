"""Everything that is printed, here alone: data on stdout, notes on stderr, colour on terminals only.

A caller in this process (pilotlight.sdk) sets SINK instead, and gets values and notes without a terminal.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, TypeVar

import click

if TYPE_CHECKING:
    from pilotlight.spec.problems import Problem

F = TypeVar("F", bound=Callable[..., Any])

START = time.monotonic()  # of this program: elapsed times count from it
# All formats; each verb names its own with `formats`, its default first.
FORMATS = ("table", "json", "yaml", "wide", "name", "url")
SEVERITIES = {"error": "red", "warning": "yellow", "info": "cyan"}
DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
SLOW_S: Final = 2.0  # a phase that lasts longer shows its duration on a terminal
SHOWN: Final = frozenset({"ts", "level", "event", "message", "logger", "traceback"})
_CONTROL: Final = re.compile(r"\x1b(?!\[[\d;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")  # all but colours


class Sink(NamedTuple):
    """Streams of a command that is called in this process: results as values, notes by line, the file `-`."""

    data: Callable[[Any], None]
    note: Callable[[str], None]
    stdin: TextIO
    start: float  # monotonic time of the call


_line_count = 0  # printed by this program: whether the last line on the terminal is still the one it was
SINK: Final = ContextVar[Sink | None]("platformctl.output", default=None)


def stdin() -> TextIO:
    """Return what the file `-` reads."""
    sink = SINK.get()
    return sink.stdin if sink else sys.stdin


def chosen() -> str:
    """Return the output format of the running command; empty: its default."""
    return str(click.get_current_context().meta.get("output", ""))


def printable(line: str) -> str:
    """Escape what a terminal obeys, except colours: models and their clients write parts of logs and reasons."""
    return _CONTROL.sub(lambda character: f"\\u{ord(character[0]):04x}", line)


def _echo(line: str, err: bool = False) -> None:
    global _line_count
    _line_count += 1
    if err and (sink := SINK.get()):
        sink.note(click.unstyle(printable(line)))
        return
    click.echo(printable(line) if (sys.stderr if err else sys.stdout).isatty() else line, err=err)


def data(value: Any, lines: Iterable[str]) -> None:
    """Print a command's result: `value` with -o json or yaml, else `lines`."""
    if sink := SINK.get():
        sink.data(value)
    elif chosen() == "json":
        _echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif chosen() == "yaml":
        from pilotlight.k8s.manifest import Manifest, to_yaml

        click.echo(to_yaml([Manifest(value)]).removeprefix("---\n"), nl=False)
    else:
        for line in lines:
            _echo(line)


def stream_line(line: str) -> None:
    """Print one line of a stream and flush it."""
    _echo(line)
    sys.stdout.flush()


def text(whole: str) -> None:
    """Print text as it is, such as manifests."""
    click.echo(whole, nl=False)


def note(sentence: str) -> None:
    """Print a note on stderr."""
    _echo(sentence, err=True)


def page_break() -> None:
    """Separate two states of a watched page: clear a terminal, else print an empty line."""
    if sys.stdout.isatty():
        click.clear()
    else:
        click.echo()


def redraw(lines: Sequence[str]) -> None:
    """Replace what the terminal shows by these lines, cut to its size, without flicker."""
    width, height = shutil.get_terminal_size()
    shown = [f"{printable(line)[:width]}\x1b[K" for line in lines[: height - 1]]
    click.echo("\x1b[H" + "\n".join(shown) + "\n\x1b[J", nl=False)
    sys.stdout.flush()


def heading(title: str) -> None:
    _echo(click.style(title, bold=True), err=True)


def error(sentence: str, hint: str = "") -> None:
    _echo(f"{click.style('error:', fg='red', bold=True)} {sentence}", err=True)
    if hint:
        _echo(f"  {hint}", err=True)


def error_data(sentence: str, hint: str, exit_code: int) -> None:
    """Print an error as the control API does, with -o json or yaml; a note on stderr follows in any case."""
    running = click.get_current_context(silent=True)
    if running and running.meta.get("output") in ("json", "yaml") and not SINK.get():
        data({"error": sentence, "hint": hint, "exit_code": exit_code}, ())


def problems(items: "Iterable[Problem]") -> None:
    """Print each problem on its own line with its location. Warnings are numbered."""
    number = 0
    for problem in items:
        number += problem.severity == "warning"
        counted = f"[{number}] " if problem.severity == "warning" else ""
        _echo(counted + severity_coloured(str(problem), problem.severity), err=True)


def severity_coloured(line: str, severity: str) -> str:
    """Colour the severity in `file:1:2: error PL101: …`."""
    before, word, after = line.partition(f"{severity} ")
    return before + click.style(word.rstrip(), fg=SEVERITIES[severity], bold=True) + " " + after if word else line


def diff_coloured(line: str) -> str:
    colour = DIFF_COLOURS.get(line[:1])
    return click.style(line, fg=colour) if colour else line


class ProgressLog:
    """Progress lines of `elapsed  phase  message`, printed on change.

    On a terminal the amount of the last line is redrawn in place, or after SLOW_S how long it has lasted; elsewhere
    both are omitted.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, start: float = START) -> None:
        sink = SINK.get()
        self._clock = clock
        self._start = sink.start if sink else start
        self._last = dict[Hashable, str]()
        self._amount = self._duration = ""
        self._terminal = sys.stderr.isatty() and not sink
        self._printed, self._lines = (0.0, ""), -1  # the last line with its time; count of lines when it was printed

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    def log(self, phase: str, message: str, amount: str = "", of: Hashable = None) -> None:
        """Print a line if it changed; `of` is its subject if several are in progress."""
        line = printable(f"{phase:<11} {message}")
        if line != self._last.get(of):
            self._end_line()
            self._last[of] = line
            if amount and self._terminal:
                click.echo(f"{self.elapsed:6.1f}s  {line}", err=True, nl=False)
            else:
                self._printed = self.elapsed, line
                _echo(f"{self.elapsed:6.1f}s  {line}", err=True)
                self._lines = _line_count
        elif not amount:
            self._show_duration(line)
        if amount and self._terminal and amount != self._amount:
            click.echo(f"\r\x1b[K{self.elapsed:6.1f}s  {line}  {amount}", err=True, nl=False)
            self._amount = amount

    def _show_duration(self, line: str) -> None:
        """Add to the last line how long it has lasted, unless something else was printed below it."""
        (at, last), width = self._printed, shutil.get_terminal_size().columns
        duration = f"  {self.elapsed - at:.0f} s"
        if not self._terminal or last != line or self._lines != _line_count or self.elapsed - at < SLOW_S:
            return
        if duration != self._duration and len(line) + 20 < width:
            click.echo(f"\x1b[A\r\x1b[K{at:6.1f}s  {line}{duration}", err=True)
            self._duration = duration

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
    """Return rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def formats(*names: str) -> Callable[[F], F]:
    """Add -o to a command; it wins over the program's own -o, which must be one of the command's formats."""

    def remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
        chosen_format = value or context.meta.get("output")
        if chosen_format and chosen_format not in names:
            raise click.BadParameter(f"{chosen_format} is not one of {', '.join(names)}", context, parameter)
        if chosen_format:
            context.meta["output"] = chosen_format

    return click.option(
        "-o", "--output", type=click.Choice(names), expose_value=False, callback=remember,
        help=f"Output format (default: {names[0]}).",
    )  # fmt: skip


output_option = formats("table", "json")


def readable(line: str) -> str:
    """`12:00:00.123 INFO model.loaded iris (version=1)`; a line that is not JSON stays as it is."""
    if not line.startswith("{"):
        return line
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return line
    if "ts" not in record or "event" not in record:
        return line
    clock = str(record["ts"]).partition("T")[2].rstrip("Z")
    fields = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in record.items()
        if name not in SHOWN
    )
    event, message = str(record["event"]), str(record.get("message", ""))
    words = [clock, str(record.get("level", "")), *([] if message.startswith(event) else [event]), message]
    text = " ".join(filter(None, words)) + (f" ({fields})" if fields else "")
    return text + (f"\n{str(record['traceback']).rstrip()}" if record.get("traceback") else "")
