"""`python -m bench.growth`: measures how cost grows, as `make bench` does; `--draw` draws kept results anew."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.__main__ import RESULTS, choice_of
from bench.environments import WORK
from bench.growth.axes import AXES
from bench.growth.curves import BENCHMARK, Axis, Growth, Setup, measure
from bench.growth.report import TITLES, markdown, sentences, sheet
from bench.load import BenchError, require_wrk
from bench.machine import busy_share, cores_here, describe, slug
from bench.plot import draw_sheet
from bench.rounds import Result, prepare
from bench.servers import SERVERS
from bench.subject import Subject

BUSY = 0.1  # share of the machine that others may use
SECONDS = 1.0


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    if options.draw:
        return redraw(RESULTS)
    try:
        require_wrk()
        quiet = busy_share() <= BUSY
        subjects, missing = prepared(options.axes, options.only)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    for axis in (AXES[name] for name in options.axes):
        growth = measured(axis, subjects, options)
        growth.failures += concerning(axis, missing)
        kept = whole(axis, growth, options) and (quiet or axis.steady)
        stem = write(growth, RESULTS if kept else WORK / "results")
        print("\n".join([*sentences(growth), f"written: {stem}.json, .md, .svg"]))
    return 0


def whole(axis: Axis, growth: Growth, options: argparse.Namespace) -> bool:
    """All servers of the axis at all steps, for long enough and without failures; else it is none to keep."""
    complete = bool(growth.curves) and not growth.failures and set(axis.servers) <= set(options.only)
    return complete and not options.quick and options.seconds >= SECONDS


def prepared(axes: Sequence[str], only: Sequence[str]) -> tuple[list[Subject], list[str]]:
    """The servers that some axis needs, and why others are missing."""
    needed = {name for axis in axes for name in AXES[axis].servers} & set(only)
    noted = Result("", describe(), cores_here().pinned, SECONDS, 1, benchmark=BENCHMARK)
    return prepare([server for server in SERVERS if server.name in needed], cores_here(), noted), noted.failures


def concerning(axis: Axis, missing: Sequence[str]) -> list[str]:
    """Each sentence begins with the server's title."""
    titles = tuple(f"{TITLES[name]} " for name in axis.servers)
    return [sentence for sentence in missing if sentence.startswith(titles)]


def measured(axis: Axis, subjects: Sequence[Subject], options: argparse.Namespace) -> Growth:
    date = datetime.now(UTC).isoformat(timespec="seconds")
    growth = Growth(axis.name, date, describe(), axis.command, options.seconds)
    setup = Setup(WORK / "work", cores_here(), options.seconds, options.quick)
    measure(axis, subjects, setup, growth)
    return growth


def write(growth: Growth, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{growth.date[:10]}-{slug(growth.machine)}-growth-{growth.axis}"
    stem.with_suffix(".json").write_text(json.dumps(growth.to_dict(), indent=1) + "\n")
    _show(growth, stem)
    return stem


def redraw(directory: Path) -> int:
    for path in sorted(directory.glob("*-growth-*.json")):
        _show(Growth.from_dict(json.loads(path.read_text())), path.with_suffix(""))
    return 0


def _show(growth: Growth, stem: Path) -> None:
    stem.with_suffix(".md").write_text(markdown(growth, stem.name))
    draw_sheet(sheet(growth), stem.with_suffix(".svg"))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    names = tuple(server.name for server in SERVERS)
    made.add_argument("--axes", type=choice_of(tuple(AXES)), default=tuple(AXES), help=f"of {','.join(AXES)}")
    made.add_argument("--only", type=choice_of(names), default=names, help=f"servers, of {','.join(names)}")
    made.add_argument("--seconds", type=float, default=SECONDS, help="length of each measurement (1)")
    made.add_argument("--quick", action="store_true", help="two steps of each axis, to try it out")
    made.add_argument("--draw", action="store_true", help="measure nothing; draw kept results anew")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
