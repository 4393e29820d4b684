"""What an axis is, and the one way in which all of them are measured: points one after the other into a Growth.

An axis is a file of its own: steps, what is measured at each, and how the curve is told. axes.py is the table of them.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.growth.fit import Points
from bench.load import BenchError, Load
from bench.machine import Cores, load_average
from bench.subject import Subject

BENCHMARK = "growth"
FAILED_AT_MOST = 0.001  # share of the requests of a point


class Point(NamedTuple):
    """So many of what grows, and what was measured there."""

    x: float
    figures: dict[str, float]


def outcome(*loads: Load) -> dict[str, float]:
    """Figures that every point under load has beside its own."""
    return {"errors": sum(load.errors for load in loads), "answers": sum(load.answers for load in loads)}


@dataclass(frozen=True, slots=True)
class Setup:
    """What an axis is given: --quick leaves it two steps."""

    work: Path
    cores: Cores
    seconds: float
    quick: bool = False

    def steps(self, wanted: Sequence[int]) -> Sequence[int]:
        return wanted[:2] if self.quick else wanted


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure of an axis over its steps; `tell` puts the growth of our own curve into words."""

    figure: str
    title: str
    tell: Callable[[Points], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """`measure` gives the curve of one server. What is `steady` hardly depends on what else the machine does."""

    name: str
    title: str
    x_label: str
    panels: tuple[Panel, ...]
    measure: Callable[[Setup, Subject], Iterator[Point]]
    servers: tuple[str, ...] = ("pilotlight",)
    steady: bool = False

    @property
    def command(self) -> str:
        return f"python -m bench.growth --axes {self.name}"


@dataclass(slots=True)
class Growth:
    """One axis as it is kept in bench/results: for each figure and server a list of points."""

    axis: str
    date: str
    machine: dict[str, str]
    command: str
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    curves: dict[str, dict[str, list[tuple[float, float]]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    benchmark: str = BENCHMARK

    def add(self, server: str, point: Point) -> None:
        for figure, value in point.figures.items():
            self.curves.setdefault(figure, {}).setdefault(server, []).append((point.x, round(value, 4)))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Growth":
        pairs = {
            figure: {server: [(x, y) for x, y in points] for server, points in found.items()}
            for figure, found in document["curves"].items()
        }
        return cls(**{**document, "curves": pairs})


def too_many_failed(axis: Axis, point: Point) -> list[str]:
    """A refusal is quicker than an answer, so a point with many of them says little."""
    failed = point.figures.get("errors", 0)
    sent = failed + point.figures.get("answers", 0)
    if failed <= FAILED_AT_MOST * sent:
        return []
    return [f"{failed:,.0f} of {sent:,.0f} requests failed at {point.x:,.0f} {axis.x_label}"]


def measure(axis: Axis, subjects: Sequence[Subject], setup: Setup, growth: Growth) -> None:
    """Every server of the axis; one that fails keeps the points it has, and the result says why it has no more."""
    for subject in subjects:
        if subject.server.name not in axis.servers:
            continue
        growth.versions[subject.server.name] = subject.environment.version_of(subject.server.distribution)
        try:
            for point in axis.measure(setup, subject):
                growth.add(subject.server.name, point)
                growth.failures += [f"{subject.server.title}: {told}" for told in too_many_failed(axis, point)]
                shown = "  ".join(f"{name} {value:,.4g}" for name, value in point.figures.items())
                print(f"{axis.name:12} {subject.server.name:10} {point.x:>12,.0f}  {shown}", file=sys.stderr)
        except (BenchError, OSError, StopIteration, RuntimeError) as error:
            growth.failures.append(f"{subject.server.title}: {error or type(error).__name__}")
            print(f"{axis.name}: {growth.failures[-1]}", file=sys.stderr)
    growth.machine["load_after"] = load_average()
