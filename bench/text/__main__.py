"""`python -m bench.text`: tokens a second and time to the first token, beside transformers' generate and llama.cpp."""

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.__main__ import RESULTS, choice_of
from bench.environments import WORK
from bench.load import BenchError
from bench.machine import busy_share, cores_here, describe, load_average, on_core, slug
from bench.processes import cpu_seconds
from bench.rounds import Result, note_failure
from bench.servers import OURS
from bench.text.report import BENCHMARK, REQUESTS, markdown, table
from bench.text.subjects import SUBJECTS, Running
from bench.text.weights import prompts, smollm2

BUSY = 0.1  # share of the machine that others may use
WARM_UP_TOKENS = 4


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    quiet = busy_share() <= BUSY
    if not quiet:
        print("warning: something else keeps this machine busy; the figures will not be kept", file=sys.stderr)
    rounds, tokens = (1, 8) if options.quick else (options.rounds, options.tokens)
    try:
        result = measure(options.only, rounds, tokens)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    whole = not options.quick and set(options.only) == set(SUBJECTS) and rounds >= 3 and not result.failures
    stem = write(result, RESULTS if whole and quiet else WORK / "results")
    print(json.dumps(result.to_dict(), indent=2) if options.output == "json" else table(result))
    print(f"written: {stem}.json, .md", file=sys.stderr)
    return 0


def measure(names: Sequence[str], rounds: int, tokens: int) -> Result:
    """All subjects stay while each has its turns, forth and back."""
    cores, weights, work = cores_here(), smollm2(), WORK / "work"
    work.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    result = Result(date, describe(), cores.pinned, 0.0, rounds, benchmark=BENCHMARK)
    with contextlib.ExitStack() as stack:
        started: dict[str, Running] = {}
        for name in names:
            try:
                started[name] = stack.enter_context(SUBJECTS[name].start(weights, cores, work))
                started[name].ask(prompts(1, 0), WARM_UP_TOKENS)
            except BenchError as error:
                note_failure(result, f"{SUBJECTS[name].title}: {error}")
                started.pop(name, None)
            else:
                result.versions[name] = SUBJECTS[name].version()
        with on_core(cores.load):
            for number in range(rounds):
                one_round(started, number, tokens, result)
    result.machine["load_after"] = load_average()
    return result


def one_round(subjects: Mapping[str, Running], number: int, tokens: int, result: Result) -> None:
    for count in REQUESTS:
        texts = prompts(count, number + 1)
        for name, subject in list(subjects.items())[:: 1 if number % 2 == 0 else -1]:
            before = cpu_seconds(subject.pid)
            figures = subject.ask(texts, tokens)
            # Those of a call for the first token alone are not part of the rate.
            spent = figures.pop("cpu_s", cpu_seconds(subject.pid) - before)
            figures["cpu_ms"] = spent * 1e3 / (count * tokens)
            result.add(name, {f"r{count}.{figure}": value for figure, value in figures.items()})
            shown = "  ".join(f"{figure} {value:,.4g}" for figure, value in figures.items())
            print(f"round {number + 1}  {name:13}  {count} at once  {shown}", file=sys.stderr)


def write(result: Result, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{result.date[:10]}-{slug(result.machine)}-text"
    stem.with_suffix(".json").write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    stem.with_suffix(".md").write_text(markdown(result))
    return stem


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.text", description=__doc__)
    names = tuple(SUBJECTS)
    made.add_argument("--only", type=choice_of(names), default=names, help=f"of {','.join(names)}; {OURS} is ours")
    made.add_argument("--tokens", type=int, default=64, help="generated for each request (64)")
    made.add_argument("--rounds", type=int, default=3, help="how often each is asked (3)")
    made.add_argument("--quick", action="store_true", help="one round of a few tokens, to try it out")
    made.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
