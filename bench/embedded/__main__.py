"""`python -m bench.embedded`: measures the embedded platform; `make bench` runs it after the peers."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.__main__ import RESULTS, choice_of
from bench.embedded.cases import CASES, Bench
from bench.embedded.report import SUBJECT, markdown, missed, table
from bench.environments import WORK
from bench.load import BenchError, require_wrk
from bench.machine import busy_share, cores_here, describe, load_average, slug
from bench.models import write_models
from bench.rounds import Result, note_failure

STARTS = 10
BUSY = 0.1  # share of the machine that others may use


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        require_wrk()
        quiet = busy_share() <= BUSY
        if not quiet:
            print("warning: something else keeps this machine busy; the figures will not be kept", file=sys.stderr)
        result = measure(options.cases, bench_from(options))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    whole = not options.quick and set(options.cases) == set(CASES) and not result.failures
    stem = write(result, RESULTS if whole and quiet else WORK / "results")
    print(json.dumps(result.to_dict(), indent=2) if options.output == "json" else table(result))
    print(f"written: {stem}.json, .md", file=sys.stderr)
    for label in missed(result):
        print(f"missed: {label}", file=sys.stderr)
    return 0


def bench_from(options: argparse.Namespace) -> Bench:
    """--quick is for trying the harness out: few services, few starts."""
    work = WORK / "work"
    model = write_models(work)["iris"]
    if options.quick:
        return Bench(work, model, cores_here(), 1.0, 1, 2, many=6, some=4)
    return Bench(work, model, cores_here(), options.seconds, options.rounds, STARTS)


def measure(cases: Sequence[str], bench: Bench) -> Result:
    """A case that fails is noted with what it gave until then left out."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    result = Result(date, describe(), bench.cores.pinned, bench.seconds, bench.rounds, benchmark=SUBJECT)
    for case in cases:
        try:
            figures = list(CASES[case](bench))
        except (BenchError, OSError, StopIteration, RuntimeError) as error:
            note_failure(result, f"{case}: {error or type(error).__name__}")
            continue
        for figure, value in figures:
            result.add(SUBJECT, {figure: value})
        print(f"{case:8}  {len(figures)} figures", file=sys.stderr)
    result.machine["load_after"] = load_average()
    return result


def write(result: Result, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{result.date[:10]}-{slug(result.machine)}-embedded"
    stem.with_suffix(".json").write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    stem.with_suffix(".md").write_text(markdown(result))
    return stem


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.embedded", description=__doc__)
    made.add_argument("--cases", type=choice_of(tuple(CASES)), default=tuple(CASES), help=f"of {','.join(CASES)}")
    made.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (3)")
    made.add_argument("--rounds", type=int, default=3, help="how often each is made (3)")
    made.add_argument("--quick", action="store_true", help="few services and starts, to try it out")
    made.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
