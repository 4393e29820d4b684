"""`pb_utils.MetricFamily` and its metrics: what a Triton model counts itself, beside what the server counts of it."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pilotlight_predictor.backends.triton_calls import Calling
from pilotlight_predictor.backends.triton_types import TritonModelException

if TYPE_CHECKING:  # a start whose models count nothing themselves needs none of it
    from pilotlight_predictor.metrics.custom import CustomFamily, CustomSeries
    from pilotlight_predictor.metrics.table import Kind

KINDS: Final[tuple["Kind", ...]] = ("counter", "gauge", "histogram")


class MetricFamily:
    """Metrics of one name that differ by their labels. `calling` is the loaded model that makes them."""

    COUNTER, GAUGE, HISTOGRAM = range(3)
    calling: Calling | None = None

    def __init__(self, name: str, description: str, kind: int) -> None:
        if self.calling is None or self.calling.calls is None:
            raise TritonModelException("metrics can be made only by a model.py that a server has loaded")
        if kind not in range(len(KINDS)):
            raise TritonModelException(f"kind = {kind!r}, must be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        self._custom = self.calling.calls.custom_metrics
        try:
            self._family = self._custom.family(name, KINDS[kind], description)
        except ValueError as wrong:
            raise TritonModelException(str(wrong)) from None

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> "Metric":  # noqa: N802 - Triton's name
        bounds = _bounds(self._family, buckets)
        try:
            return Metric(self._custom.series(self.calling, self._family, labels or {}, bounds))
        except ValueError as wrong:
            raise TritonModelException(str(wrong)) from None


class Metric:
    """One of them; it is scraped for as long as the model keeps it."""

    def __init__(self, series: "CustomSeries") -> None:
        self._series = series

    def increment(self, value: float) -> None:
        self._needs("counter", "gauge")
        if self._series.family.kind == "counter" and value < 0:
            raise TritonModelException(f"counter {self._series.family.name} cannot fall, got {value}")
        self._series.add(_number(value))

    def set(self, value: float) -> None:
        self._needs("gauge")
        self._series.set(_number(value))

    def observe(self, value: float) -> None:
        self._needs("histogram")
        self._series.observe(_number(value))

    def value(self) -> float:
        self._needs("counter", "gauge")
        return self._series.value

    def _needs(self, *kinds: "Kind") -> None:
        family = self._series.family
        if family.kind not in kinds:
            raise TritonModelException(f"metric {family.name} is a {family.kind}; this is for a {' or a '.join(kinds)}")


def _bounds(family: "CustomFamily", buckets: Sequence[float] | None) -> tuple[float, ...]:
    if family.kind != "histogram":
        if buckets is not None:
            raise TritonModelException(f"metric {family.name} is a {family.kind}, which has no buckets")
        return ()
    bounds = tuple(_number(bound) for bound in buckets or ())
    if not bounds or list(bounds) != sorted(set(bounds)):
        raise TritonModelException(f"histogram {family.name} needs buckets that rise, such as [0.1, 1.0, 10.0]")
    return bounds


def _number(value: float) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise TritonModelException(f"a metric was given {value}, must be a finite number")
    return found
