"""The run: every server through every case, in rounds of alternating order, into one Result.

Rounds go forth and back, so that a machine that warms up or gets busy does not favour the first server.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.cases import CASES
from bench.environments import WORK
from bench.load import BenchError
from bench.machine import Cores, describe, load_average
from bench.models import payload_of, write_models
from bench.servers import Server
from bench.subject import Figures, Subject
from bench.table_models import table_payload, write_tables

BENCHMARK = "peers"


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for on the command line."""

    servers: Sequence[str]
    cases: Sequence[str]
    seconds: float
    rounds: int


@dataclass(slots=True)
class Result:
    """All figures of a run, as it is kept in bench/results. Samples are one list of rounds per server and figure."""

    date: str
    machine: dict[str, str]
    pinned: bool
    seconds: float
    rounds: int
    versions: dict[str, str] = field(default_factory=dict)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    benchmark: str = BENCHMARK

    def median(self, server: str, figure: str) -> float | None:
        values = self.samples.get(server, {}).get(figure)
        return statistics.median(values) if values else None

    def errors(self, server: str) -> int:
        """Requests that got anything but a 2xx, over all rounds."""
        return round(sum(sum(v) for k, v in self.samples.get(server, {}).items() if k.endswith(".errors")))

    def add(self, server: str, figures: Figures) -> None:
        for figure, value in figures.items():
            self.samples.setdefault(server, {}).setdefault(figure, []).append(round(value, 4))

    def to_dict(self) -> dict[str, Any]:
        medians = {server: {key: self.median(server, key) for key in found} for server, found in self.samples.items()}
        return {**asdict(self), "medians": medians}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Result":
        return cls(**{key: value for key, value in document.items() if key != "medians"})


def run(settings: Settings, servers: Sequence[Server], cores: Cores, date: str) -> Result:
    result = Result(date, describe(), cores.pinned, settings.seconds, settings.rounds)
    subjects = prepare(servers, cores, result)
    for number in range(settings.rounds):
        for subject in ordered(subjects, number):
            for case in settings.cases:
                measure(subject, case, settings.seconds, result, f"round {number + 1}/{settings.rounds}")
    result.machine["load_after"] = load_average()
    return result


def ordered(subjects: Sequence[Subject], number: int) -> Sequence[Subject]:
    return subjects if number % 2 == 0 else list(reversed(subjects))


def prepare(servers: Sequence[Server], cores: Cores, result: Result) -> list[Subject]:
    """Models, requests and environments. A peer that cannot be installed is left out, and the result says so."""
    work = WORK / "work"
    models = write_models(work)
    payloads = {name: payload_of(model) for name, model in models.items()}
    for model in write_tables(work):
        models[model.name], payloads[model.name] = model, table_payload(model)
    subjects: list[Subject] = []
    for server in servers:
        try:
            environment = server.environment()
        except BenchError as error:
            note_failure(result, f"{server.title} could not be installed: {error}")
            continue
        result.versions[server.name] = f"{server.distribution} {environment.version_of(server.distribution)}"
        subjects.append(Subject(server, environment, models, payloads, work, cores))
    return subjects


def measure(subject: Subject, case: str, seconds: float, result: Result, place: str) -> None:
    try:
        figures = CASES[case](subject, seconds)
    except BenchError as error:
        note_failure(result, f"{subject.server.title}, {case}: {error}")
        return
    result.add(subject.server.name, figures)
    shown = "  ".join(
        f"{key.partition('.')[2]} {value:,.4g}" for key, value in figures.items() if not key.endswith("_cpu")
    )
    print(f"{place}  {subject.server.name:10}  {case:8}  {shown or 'not supported'}", file=sys.stderr)


def note_failure(result: Result, sentence: str) -> None:
    print(sentence, file=sys.stderr)
    if sentence not in result.failures:
        result.failures.append(sentence)
