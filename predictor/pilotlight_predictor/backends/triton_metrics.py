"""`pb_utils.MetricFamily` and its metrics: custom metrics of a Triton model."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pilotlight_predictor.backends.triton_calls import BlsCaller
from pilotlight_predictor.backends.triton_types import TritonModelException

if TYPE_CHECKING:  # imported only for models with custom metrics
    from pilotlight_predictor.metrics.custom import CustomFamily, CustomSeries
    from pilotlight_predictor.metrics.table import MetricKind

KINDS: Final[tuple["MetricKind", ...]] = ("counter", "gauge", "histogram")


class MetricFamily:
    """Metrics of one name with different labels. `bls` is the loaded model that creates them."""

    COUNTER, GAUGE, HISTOGRAM = range(3)
    bls: BlsCaller | None = None

    def __init__(self, name: str, description: str, kind: int) -> None:
        if self.bls is None or self.bls.calls is None:
            raise TritonModelException("metrics can be made only by a model.py that a server has loaded")
        if kind not in range(len(KINDS)):
            raise TritonModelException(f"kind = {kind!r}, must be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        self._custom = self.bls.calls.custom_metrics
        try:
            self._family = self._custom.family(name, KINDS[kind], description)
        except ValueError as wrong:
            raise TritonModelException(str(wrong)) from None

    def Metric(self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None) -> "Metric":  # noqa: N802 - Triton's name
        bounds = _bounds(self._family, buckets)
        try:
            return Metric(self._custom.series(self.bls, self._family, labels or {}, bounds))
        except ValueError as wrong:
            raise TritonModelException(str(wrong)) from None


class Metric:
    """One metric, exported while the model references it."""

    def __init__(self, series: "CustomSeries") -> None:
        self._series = series

    def increment(self, value: float) -> None:
        self._require_kind("counter", "gauge")
        if self._series.family.kind == "counter" and value < 0:
            raise TritonModelException(f"counter {self._series.family.name} cannot fall, got {value}")
        self._series.add(_number(value))

    def set(self, value: float) -> None:
        self._require_kind("gauge")
        self._series.set(_number(value))

    def observe(self, value: float) -> None:
        self._require_kind("histogram")
        self._series.observe(_number(value))

    def value(self) -> float:
        self._require_kind("counter", "gauge")
        return self._series.value

    def _require_kind(self, *kinds: "MetricKind") -> None:
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
    number = float(value)
    if not math.isfinite(number):
        raise TritonModelException(f"a metric was given {value}, must be a finite number")
    return number
