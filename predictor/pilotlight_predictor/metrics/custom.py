"""Custom metrics of user models: they exist as long as the model holds them and is loaded.

Written by the threads of models, read by a scrape. Two models, or two versions of one, may create a family
of the same name; both then count in the same series.
"""

import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from pilotlight_predictor.metrics.definitions import TABLE, Metric, MetricKind
from pilotlight_predictor.metrics.exposition import Family
from pilotlight_predictor.metrics.model_stats import Histogram

MAX_SERIES: Final = 5000  # of all families together: bounds the memory if labels come from requests
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_HISTOGRAM_SUFFIXES: Final = ("_bucket", "_count", "_sum")
Key = tuple[tuple[str, str], ...]


class CustomSeries:
    """A time series or a histogram. `owners` are the loaded models that count in it."""

    def __init__(self, family: "CustomFamily", labels: Mapping[str, str], bounds: Sequence[float]) -> None:
        self.family, self.labels, self.bounds = family, dict(labels), tuple(bounds)
        self.owners: set[object] = set()
        self._lock = Lock()
        self._value = 0.0
        self._histogram = Histogram(self.bounds) if family.kind == "histogram" else None

    def add(self, amount: float) -> None:
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        with self._lock:
            self._value = value

    def observe(self, value: float) -> None:
        assert self._histogram is not None
        with self._lock:
            self._histogram.observe(value)

    @property
    def value(self) -> float:
        return self._value

    def read(self) -> float | Histogram:
        """Return the current value; a histogram as a copy, since its model continues to count."""
        if self._histogram is None:
            return self._value
        with self._lock:
            copy = Histogram(self._histogram.bounds)
            copy.counts, copy.sum = list(self._histogram.counts), self._histogram.sum
        return copy


class CustomFamily:
    def __init__(self, name: str, kind: MetricKind, description: str) -> None:
        self.name, self.kind, self.description = name, kind, description
        self.series: WeakValueDictionary[Key, CustomSeries] = WeakValueDictionary()


class CustomMetrics:
    """Custom metrics of one process, from any thread. ValueError for an invalid name, label or kind."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._families: WeakValueDictionary[str, CustomFamily] = WeakValueDictionary()

    def family(self, name: str, kind: MetricKind, description: str) -> CustomFamily:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"the metric's name is {name!r}, must be letters, digits, _ and :, and not start with a digit"
            )
        if not isinstance(description, str):
            raise ValueError(f"the description of metric {name} is {type(description).__name__}, must be text")
        with self._lock:
            self._check_free(name, kind)
            family = self._families.get(name)
            if family is None:
                family = self._families[name] = CustomFamily(name, kind, description)
        if family.kind != kind:
            raise ValueError(f"the metric {name} is already a {family.kind}, a {kind} needs another name")
        return family

    def series(
        self, owner: object, family: CustomFamily, labels: Mapping[str, str], bounds: Sequence[float] = ()
    ) -> CustomSeries:
        """Return the series with these labels; other bounds than before replace it."""
        for label, value in labels.items():
            if not isinstance(label, str) or not _LABEL.fullmatch(label) or label.startswith("__") or label == "le":
                raise ValueError(
                    f"metric {family.name} has the label {label!r}, must be letters, digits and _, and not le"
                )
            if not isinstance(value, str):
                raise ValueError(f"label {label} of metric {family.name} is {type(value).__name__}, must be text")
        key = tuple(sorted(labels.items()))
        with self._lock:
            series = family.series.get(key)
            if series is None or series.bounds != tuple(bounds):
                if sum(len(each.series) for each in list(self._families.values())) >= MAX_SERIES:
                    raise ValueError(f"models have {MAX_SERIES} series, the limit: use fewer labels")
                series = family.series[key] = CustomSeries(family, labels, bounds)
            series.owners.add(owner)
            self._families.setdefault(family.name, family)
        return series

    def remove_owner(self, owner: object) -> None:
        """Remove series that only this unloaded model counted in, even if its code still holds them."""
        with self._lock:
            for family in list(self._families.values()):
                for key, series in list(family.series.items()):
                    series.owners.discard(owner)
                    if not series.owners:
                        del family.series[key]
                if not family.series:
                    del self._families[family.name]

    def collect(self) -> list[Family]:
        with self._lock:
            snapshot = [(family, list(family.series.values())) for family in list(self._families.values())]
        exposed = []
        for custom, every in sorted(snapshot, key=lambda each: each[0].name):
            family = Family(Metric(custom.name, custom.kind, custom.description))
            for series in every:
                family.add(series.read(), series.labels)
            exposed.append(family)
        return exposed

    def _check_free(self, name: str, kind: MetricKind) -> None:
        """Raise ValueError if a line of the exposition would belong to two families."""
        taken = {line for own, metric in TABLE.items() for line in _lines(own, metric.kind)}
        others = [(own, each.kind) for own, each in list(self._families.items()) if own != name]
        taken |= {line for own, each in others for line in _lines(own, each)}
        if _lines(name, kind) & taken:
            raise ValueError(f"the metric's name is {name}, which is already in use; choose another")


def _lines(name: str, kind: MetricKind) -> set[str]:
    return {name, *(f"{name}{end}" for end in _HISTOGRAM_SUFFIXES)} if kind == "histogram" else {name}
