"""Families of samples → the bytes that a Prometheus server scrapes. Pure.

Two formats: text 0.0.4, and OpenMetrics 1.0 when the client's Accept header asks for it, which Prometheus does by
default. Series keep their names in both, so a query does not depend on who scraped.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pilotlight.wire import prometheus_text
from pilotlight.wire.prometheus_text import LABEL_ESCAPES, number
from pilotlight_predictor.metrics.table import Metric
from pilotlight_predictor.stats import Histogram

TEXT: Final = prometheus_text.CONTENT_TYPE
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = Mapping[str, str]
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Sample(NamedTuple):
    labels: Labels
    value: float | Histogram


class Family:
    """One metric of the table and its series; a histogram's samples hold Histograms, all others numbers."""

    __slots__ = ("metric", "samples")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.samples: list[Sample] = []

    def add(self, value: float | Histogram, labels: Labels) -> None:
        self.samples.append(Sample(labels, value))


def content_type(accept: str) -> str:
    """The format for an Accept header: OpenMetrics only to who names it and does not refuse it with q=0."""
    for offer in accept.lower().split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        if media == "application/openmetrics-text":
            return TEXT if any(p in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for p in parameters) else OPENMETRICS
    return TEXT


def expose(families: Iterable[Family], content: str = TEXT) -> bytes:
    """Families without samples are left out: a TYPE line alone says nothing."""
    openmetrics = content == OPENMETRICS
    lines: list[str] = []
    for family in families:
        if family.samples:
            _write_family(lines, family, openmetrics)
    if openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode("utf-8", "replace")


def _write_family(lines: list[str], family: Family, openmetrics: bool) -> None:
    name, kind, _, help_text = family.metric
    # OpenMetrics would rename a counter to …_total; as "unknown" it keeps the name that Triton's users query.
    shown = "unknown" if openmetrics and kind == "counter" and not name.endswith("_total") else kind
    lines.append(f"# HELP {name} {_escape_help(help_text, openmetrics)}\n# TYPE {name} {shown}\n")
    for labels, value in family.samples:
        written = prometheus_text.labels(labels)
        if isinstance(value, Histogram):
            _write_histogram(lines, name, written, value)
        else:
            lines.append(f"{name}{{{written}}} {number(value)}\n" if written else f"{name} {number(value)}\n")


def _write_histogram(lines: list[str], name: str, written: str, histogram: Histogram) -> None:
    prefix = written + "," if written else ""
    cumulative = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        cumulative += count
        lines.append(f'{name}_bucket{{{prefix}le="{number(float(bound))}"}} {cumulative}\n')
    suffix = f"{{{written}}}" if written else ""
    lines.append(f"{name}_count{suffix} {cumulative}\n{name}_sum{suffix} {number(histogram.sum)}\n")


def _escape_help(text: str, openmetrics: bool) -> str:
    return text.translate(LABEL_ESCAPES if openmetrics else _HELP_ESCAPES)
