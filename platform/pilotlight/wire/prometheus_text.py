"""Prometheus' text exposition format: numbers and labels for every page, families for those of gateway and control API.

Families are built anew at each scrape. The predictor, which also writes OpenMetrics, has a writer of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, str]
MetricKind = Literal["gauge", "counter", "summary", "histogram"]


class Sample(NamedTuple):
    labels: Labels
    value: float
    suffix: str = ""  # of the family's name: _bucket, _sum or _count


@dataclass(slots=True)
class Family:
    """One metric family with its samples."""

    name: str
    kind: MetricKind
    help: str
    samples: list[Sample] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        self.samples.append(Sample(labels, value))

    def add_summary(self, count: int, total: float, **labels: str) -> None:
        """Add sum and count, the sum rounded to millionths."""
        self.samples += Sample(labels, round(total, 6), "_sum"), Sample(labels, count, "_count")

    def add_histogram(self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str) -> None:
        """Add the cumulative buckets of `counts`, whose last one is above all bounds, with sum and count."""
        below = 0
        for bound, count in zip((*bounds, float("inf")), counts, strict=True):
            below += count
            self.samples.append(Sample({**labels, "le": number(bound)}, below, "_bucket"))
        self.add_summary(below, total, **labels)


def render_families(families: Iterable[Family], *, with_empty: bool = False) -> str:
    """Return the exposition text; families without samples only on request."""
    chosen = (family for family in families if family.samples or with_empty)
    return "".join(f"{line}\n" for family in chosen for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value, suffix in family.samples:
        yield f"{family.name}{suffix}{{{format_labels(labels)}}} {number(value)}"


def format_labels(values: Labels) -> str:
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
