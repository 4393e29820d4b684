"""Exposition format: one writer for all three processes.

Numbers and labels of Prometheus' text format, for the pages of predictor, gateway and control API.

Prometheus text exposition of metric families that are built anew at each scrape. Pure.

Gateway and predictor, which count continuously, have writers of their own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def format_labels(values: Mapping[str, str]) -> str:
    """Return labels as they are written within the braces of a series."""
    return ",".join(f'{name}="{text.translate(LABEL_ESCAPES)}"' for name, text in values.items())


def number(value: float) -> str:
    """Return a sample value. An int stays an int, so that large counters lose no digits."""
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


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
        yield f"{family.name}{{{format_labels(labels)}}} {number(value)}"
