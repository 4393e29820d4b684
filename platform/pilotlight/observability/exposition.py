"""Families of samples → the text that a Prometheus scrapes. Pure, and of the standard library alone.

For pages that are made anew at each scrape; the gateway and the predictor, which count all the time, have their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pilotlight.wire import prometheus_text

Labels = Mapping[str, str]


@dataclass(slots=True)
class Family:
    """One metric with its series."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        self.samples.append((labels, value))


def page(families: Iterable[Family]) -> str:
    """Families without samples are left out: a TYPE line alone says nothing."""
    return "".join(f"{line}\n" for family in families if family.samples for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in family.samples:
        yield f"{family.name}{{{prometheus_text.labels(labels)}}} {prometheus_text.number(value)}"
