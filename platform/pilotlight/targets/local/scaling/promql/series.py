"""Time series of the last minutes, from the replicas' own /metrics; read by the evaluator.

Only names that a query uses are stored, for as long as its range reaches back.
"""

import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Final

from pilotlight.targets.local.scaling.promql import regexes

Labels = tuple[tuple[str, str], ...]
LOOKBACK_S: Final = 300.0  # Prometheus' lookback delta: how long a sample stays current
MARGIN_S: Final = 30.0
UP: Final = "up"
_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_time: Final = itemgetter(0)  # of a sample
_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Selector:
    name: str
    matchers: tuple[tuple[str, str, str], ...]  # label, operator, value
    range_s: float = 0.0
    offset_s: float = 0.0


@dataclass(slots=True)
class Series:
    labels: Labels
    points: deque[tuple[float, float]] = field(default_factory=deque)  # time and value, oldest first
    ended: bool = False  # stale: its samples still count in ranges, but it has no current value


class SeriesStore:
    """Series by name and labels. Times come from the caller; samples older than the last one are dropped."""

    def __init__(self) -> None:
        self._names: dict[str, float] = {}  # retention in seconds
        self._series: dict[str, dict[Labels, Series]] = {}

    def retain(self, selector: Selector) -> bool:
        """Store the selector's metric from now on; return whether its name is new."""
        fresh = selector.name not in self._names
        reach = selector.offset_s + (selector.range_s or LOOKBACK_S) + MARGIN_S
        self._names[selector.name] = max(reach, self._names.get(selector.name, 0.0))
        return fresh

    def ingest(self, text: str, labels: Mapping[str, str], now: float) -> None:
        """Store one replica's exposition; `labels` are its own, win over those of the text, and identify it."""
        for line in text.splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in self._names and (match := _LINE.fullmatch(line)):
                quoted = _LABEL.findall(match[2] or "")
                own = {key: re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), value) for key, value in quoted}
                if all(len(value) <= regexes.LENGTH for value in own.values()):
                    self._add(name, {**own, **labels}, float(match[3]), now)
        self._add(UP, labels, 1.0, now)
        self._prune(now)

    def record(self, name: str, labels: Mapping[str, str], value: float, now: float) -> None:
        """Store a sample that does not come from a replica."""
        self._add(name, labels, value, now)
        self._prune(now)

    def load(self, name: str, labels: Mapping[str, str], value: float, at: float) -> None:
        """Store a sample of the past, whatever its name; later ones must follow. Such a store is not pruned."""
        self._names.setdefault(name, math.inf)
        self._add(name, labels, value, at)

    def mark_down(self, labels: Mapping[str, str], now: float) -> None:
        """Record a failed scrape: the replica's series become stale, and `up` is 0."""
        self.mark_ended(labels)
        self._add(UP, labels, 0.0, now)

    def mark_ended(self, labels: Mapping[str, str]) -> None:
        wanted = set(labels.items())
        for series in self._all():
            if wanted <= set(series.labels):
                series.ended = True

    def select(self, selector: Selector) -> Iterator[Series]:
        for series in self._series.get(selector.name, {}).values():
            if all(matches(dict(series.labels), matcher) for matcher in selector.matchers):
                yield series

    def __len__(self) -> int:
        return sum(len(series.points) for series in self._all())

    def _all(self) -> Iterator[Series]:
        return (series for group in self._series.values() for series in group.values())

    def _add(self, name: str, labels: Mapping[str, str], value: float, now: float) -> None:
        if name not in self._names:
            return
        key = tuple(sorted(labels.items()))
        series = self._series.setdefault(name, {}).setdefault(key, Series(key))
        if not series.points or series.points[-1][0] < now:
            series.points.append((now, value))
        series.ended = False

    def _prune(self, now: float) -> None:
        for name, group in self._series.items():
            oldest = now - self._names[name]
            for key, series in list(group.items()):
                while series.points and series.points[0][0] < oldest:
                    series.points.popleft()
                if not series.points:
                    del group[key]


def at(series: Series, now: float) -> float | None:
    """Return the value at this time; None if stale by then or without a sample within the lookback."""
    if series.ended and (not series.points or series.points[-1][0] <= now):
        return None
    end = bisect_right(series.points, now, key=_time)
    if not end:
        return None
    time, value = series.points[end - 1]
    return value if now - time < LOOKBACK_S else None


def within(series: Series, now: float, range_s: float) -> list[tuple[float, float]]:
    limits = (bisect_right(series.points, at, key=_time) for at in (now - range_s, now))
    return [point for point in islice(series.points, *limits) if not math.isnan(point[1])]


def matches(labels: Mapping[str, str], matcher: tuple[str, str, str]) -> bool:
    label, operator, value = matcher
    label_value = labels.get(label, "")
    if operator in ("=", "!="):
        return (label_value == value) == (operator == "=")
    return regexes.matches(value, label_value) == (operator == "=~")
