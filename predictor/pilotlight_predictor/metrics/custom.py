"""Metrics that models make themselves: families and series that live as long as their model holds them and serves.

Written by the threads of models, read by a scrape (`collect`). A family of one name may be made twice, by two models
or two versions of one; both then count in the same series.
"""

import re
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from pilotlight_predictor.metrics.exposition import Family
from pilotlight_predictor.metrics.table import TABLE, Kind, Metric
from pilotlight_predictor.stats import Histogram

MOST_SERIES: Final = 5000  # of all families together: labels made of requests would fill the memory
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OF_HISTOGRAMS: Final = ("_bucket", "_count", "_sum")
Key = tuple[tuple[str, str], ...]


class CustomSeries:
    """One line of a scrape, or one histogram. `owners` are the loaded models that count in it."""

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
        """As it is now; a histogram as a copy, since its model goes on counting."""
        if self._histogram is None:
            return self._value
        with self._lock:
            copy = Histogram(self._histogram.bounds)
            copy.counts, copy.sum = list(self._histogram.counts), self._histogram.sum
        return copy


class CustomFamily:
    def __init__(self, name: str, kind: Kind, description: str) -> None:
        self.name, self.kind, self.description = name, kind, description
        self.series: WeakValueDictionary[Key, CustomSeries] = WeakValueDictionary()


class CustomMetrics:
    """Of one process. ValueError says what a name, a label or a kind must be."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._families: WeakValueDictionary[str, CustomFamily] = WeakValueDictionary()

    def family(self, name: str, kind: Kind, description: str) -> CustomFamily:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"the metric's name is {name!r}, must be letters, digits, _ and :, and begin with no digit"
            )
        if not isinstance(description, str):
            raise ValueError(f"the description of metric {name} is {type(description).__name__}, must be text")
        with self._lock:
            self._check_free(name, kind)
            found = self._families.get(name)
            if found is None:
                found = self._families[name] = CustomFamily(name, kind, description)
        if found.kind != kind:
            raise ValueError(f"the metric {name} is a {found.kind} already, must have another name as a {kind}")
        return found

    def series(
        self, owner: object, family: CustomFamily, labels: Mapping[str, str], bounds: Sequence[float] = ()
    ) -> CustomSeries:
        """With other bounds than before, the new one takes the old one's place."""
        _check_labels(family, labels)
        key = tuple(sorted(labels.items()))
        with self._lock:
            found = family.series.get(key)
            if found is None or found.bounds != tuple(bounds):
                self._check_room()
                found = family.series[key] = CustomSeries(family, labels, bounds)
            found.owners.add(owner)
            self._families.setdefault(family.name, family)
        return found

    def leave(self, owner: object) -> None:
        """The model is unloaded: what it alone counted is told no more, whoever still holds it."""
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
            kept = [(family, list(family.series.values())) for family in list(self._families.values())]
        found = []
        for family, every in sorted(kept, key=lambda each: each[0].name):
            made = Family(Metric(family.name, family.kind, (), family.description))
            for series in every:
                made.add(series.read(), series.labels)
            found.append(made)
        return found

    def _check_free(self, name: str, kind: Kind) -> None:
        """No line of a scrape may belong to two families."""
        taken = {line for own, metric in TABLE.items() for line in _lines(own, metric.kind)}
        others = [(own, each.kind) for own, each in list(self._families.items()) if own != name]
        taken |= {line for own, each in others for line in _lines(own, each)}
        if _lines(name, kind) & taken:
            raise ValueError(f"the metric's name is {name}, which another metric of the server has; choose another")

    def _check_room(self) -> None:
        if sum(len(family.series) for family in list(self._families.values())) >= MOST_SERIES:
            raise ValueError(f"models have {MOST_SERIES} series already, no more are made: labels must be few")


def _lines(name: str, kind: Kind) -> set[str]:
    return {name, *(f"{name}{end}" for end in _OF_HISTOGRAMS)} if kind == "histogram" else {name}


def _check_labels(family: CustomFamily, labels: Mapping[str, str]) -> None:
    for label, value in labels.items():
        if not isinstance(label, str) or not _LABEL.fullmatch(label) or label.startswith("__") or label == "le":
            raise ValueError(f"metric {family.name} has the label {label!r}, must be letters, digits and _, and not le")
        if not isinstance(value, str):
            raise ValueError(f"label {label} of metric {family.name} is {type(value).__name__}, must be text")
