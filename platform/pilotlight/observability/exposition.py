"""Prometheus text exposition of metric families that are built anew at each scrape. Pure.

Gateway and predictor, which count continuously, have writers of their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pilotlight.wire import prometheus_text

Labels = Mapping[str, str]


@dataclass(slots=True)
class Family:
    """One metric family with its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        self.samples.append((labels, value))


def render_families(families: Iterable[Family]) -> str:
    """Return the exposition text, without families that have no samples."""
    return "".join(f"{line}\n" for family in families if family.samples for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in family.samples:
        yield f"{family.name}{{{prometheus_text.labels(labels)}}} {prometheus_text.number(value)}"
