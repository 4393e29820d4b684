"""`python -m bench`: measures Pilotlight beside its peers; `python -m bench readme` shows the newest result there."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.cases import CASES
from bench.environments import ROOT, WORK
from bench.load import BenchError, require_wrk
from bench.machine import cores_here, slug
from bench.plot import draw
from bench.readme import BENCHMARKS_PAGE, README, write_page
from bench.report import markdown, table
from bench.rounds import Result, Settings, run
from bench.servers import SERVERS

RESULTS = ROOT / "bench" / "results"
BUSY = 0.5  # load average of the last minute above which figures are not to be trusted
NAMES = tuple(server.name for server in SERVERS)


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.action == "readme":
            write_page(ROOT / "README.md", RESULTS, README)
            write_page(ROOT / "docs" / "benchmarks.md", RESULTS, BENCHMARKS_PAGE)
            return 0
        return bench(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def bench(options: argparse.Namespace) -> int:
    require_wrk()
    cores = cores_here()
    if not cores.pinned:
        print("warning: fewer than 2 cores, so server and load share one; the figures are rough", file=sys.stderr)
    if os.getloadavg()[0] > BUSY:
        print("warning: something else keeps this machine busy; the figures will vary", file=sys.stderr)
    settings = settings_from(options)
    servers = [server for server in SERVERS if server.name in settings.servers]
    result = run(settings, servers, cores, datetime.now(UTC).isoformat(timespec="seconds"))
    if not result.samples:
        raise BenchError("no server could be measured")
    stem = write(result, RESULTS if publishable(settings) else WORK / "results")
    print(json.dumps(result.to_dict(), indent=2) if options.output == "json" else table(result))
    print(f"written: {stem}.json, .md, .svg", file=sys.stderr)
    return 0


def settings_from(options: argparse.Namespace) -> Settings:
    """--quick is for trying the harness out: one round of one second."""
    seconds, rounds = (1.0, 1) if options.quick else (options.seconds, options.rounds)
    return Settings(options.only, options.cases, seconds, rounds)


def publishable(settings: Settings) -> bool:
    """Only a complete run goes into bench/results, so that a rough or partial one is never taken for it."""
    whole = set(settings.servers) == set(NAMES) and set(settings.cases) == set(CASES)
    return whole and settings.rounds >= 2 and settings.seconds >= 3


def write(result: Result, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{result.date[:10]}-{slug(result.machine)}"
    stem.with_suffix(".json").write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    stem.with_suffix(".md").write_text(markdown(result))
    draw(result, stem.with_suffix(".svg"))
    return stem


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument("action", nargs="?", choices=["run", "readme"], default="run")
    made.add_argument("--only", type=choice_of(NAMES), default=NAMES, help=f"servers, of {','.join(NAMES)}")
    made.add_argument("--cases", type=choice_of(tuple(CASES)), default=tuple(CASES), help=f"of {','.join(CASES)}")
    made.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (3)")
    made.add_argument("--rounds", type=int, default=3, help="how often each server is measured (3)")
    made.add_argument("--quick", action="store_true", help="one round of 1 s, to try it out")
    made.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return made


class choice_of:  # noqa: N801 - reads as a function where it is used
    """A comma-separated choice, in the order of the table."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = allowed

    def __call__(self, text: str) -> tuple[str, ...]:
        unknown = [name for name in text.split(",") if name not in self.allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is not one of {', '.join(self.allowed)}")
        return tuple(name for name in self.allowed if name in text.split(","))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
