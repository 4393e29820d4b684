"""Metric families → Prometheus exposition formats. Pure.

Text 0.0.4, or OpenMetrics 1.0 if the Accept header lists it, as Prometheus' does by default. Series have the same names
in both, so that queries do not depend on the scraper.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pilotlight.wire.prometheus_text import CONTENT_TYPE, LABEL_ESCAPES, format_labels, number
from pilotlight_predictor.metrics.definitions import Metric
from pilotlight_predictor.metrics.model_stats import Histogram

TEXT: Final = CONTENT_TYPE
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = Mapping[str, str]
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Sample(NamedTuple):
    labels: Labels
    value: float | Histogram


class Family:
    """A metric and its series; samples of a histogram are Histograms, all others numbers."""

    __slots__ = ("metric", "samples")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.samples: list[Sample] = []

    def add(self, value: float | Histogram, labels: Labels) -> None:
        self.samples.append(Sample(labels, value))


def content_type(accept: str) -> str:
    """Return the format for an Accept header: OpenMetrics only if it is listed with q > 0."""
    for offer in accept.lower().split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        if media == "application/openmetrics-text":
            return TEXT if any(p in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for p in parameters) else OPENMETRICS
    return TEXT


def expose(families: Iterable[Family], content: str = TEXT) -> bytes:
    """Write all families that have samples."""
    openmetrics = content == OPENMETRICS
    lines: list[str] = []
    for family in families:
        if family.samples:
            _write_family(lines, family, openmetrics)
    if openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode("utf-8", "replace")


def _write_family(lines: list[str], family: Family, openmetrics: bool) -> None:
    name, kind, help_text, _ = family.metric
    # OpenMetrics requires counters to be named …_total; type "unknown" preserves Triton's names.
    exposed_kind = "unknown" if openmetrics and kind == "counter" and not name.endswith("_total") else kind
    escaped = help_text.translate(LABEL_ESCAPES if openmetrics else _HELP_ESCAPES)
    declared = name.removesuffix("_total") if openmetrics and kind == "counter" else name
    lines.append(f"# HELP {declared} {escaped}\n# TYPE {declared} {exposed_kind}\n")
    for labels, value in family.samples:
        written = format_labels(labels)
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
