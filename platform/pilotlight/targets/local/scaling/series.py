"""The last minutes of the metrics that triggers ask for, read from the replicas' own /metrics. Asked by promql.py.

Only names that some query uses are kept, and only for as long as its range reaches back.
"""

import math
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pilotlight.targets.local.scaling.promql_syntax import Selector

Labels = tuple[tuple[str, str], ...]
LOOKBACK_S: Final = 300.0  # how long a value holds that was not seen again, as in Prometheus
MARGIN_S: Final = 30.0
UP: Final = "up"
_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(slots=True)
class Series:
    labels: Labels
    points: deque[tuple[float, float]] = field(default_factory=deque)  # time and value, oldest first
    gone: bool = False  # its replica has ended: the past still counts in ranges, the present does not


class SeriesStore:
    """Times are those that the caller gives; samples that come with an earlier one than the last are left out."""

    def __init__(self) -> None:
        self._names: dict[str, float] = {}  # how far back each is asked for
        self._series: dict[str, dict[Labels, Series]] = {}

    def watch(self, selector: Selector) -> bool:
        """Whether its name is new here."""
        fresh = selector.name not in self._names
        reach = selector.offset_s + (selector.range_s or LOOKBACK_S) + MARGIN_S
        self._names[selector.name] = max(reach, self._names.get(selector.name, 0.0))
        return fresh

    def ingest(self, text: str, labels: Mapping[str, str], now: float) -> None:
        """One replica's exposition; `labels` are its own and win over those of the text."""
        for line in text.splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in self._names and (found := _LINE.fullmatch(line)):
                self._add(name, {**_labels(found[2] or ""), **labels}, float(found[3]), now)
        self._add(UP, labels, 1.0, now)
        self._prune(now)

    def note(self, name: str, labels: Mapping[str, str], value: float, now: float) -> None:
        """What no replica tells of itself."""
        self._add(name, labels, value, now)
        self._prune(now)

    def lost(self, labels: Mapping[str, str], now: float) -> None:
        """The replica did not answer: what it said before holds no longer, and `up` is 0."""
        self.forget(labels)
        self._add(UP, labels, 0.0, now)

    def forget(self, labels: Mapping[str, str]) -> None:
        wanted = set(labels.items())
        for found in self._every():
            if wanted <= set(found.labels):
                found.gone = True

    def select(self, selector: Selector) -> Iterator[Series]:
        for found in self._series.get(selector.name, {}).values():
            if all(_matches(dict(found.labels), matcher) for matcher in selector.matchers):
                yield found

    def __len__(self) -> int:
        """Samples that are kept."""
        return sum(len(found.points) for found in self._every())

    def _every(self) -> Iterator[Series]:
        return (found for group in self._series.values() for found in group.values())

    def _add(self, name: str, labels: Mapping[str, str], value: float, now: float) -> None:
        if name not in self._names:
            return
        key = tuple(sorted(labels.items()))
        found = self._series.setdefault(name, {}).setdefault(key, Series(key))
        if not found.points or found.points[-1][0] < now:
            found.points.append((now, value))
        found.gone = False

    def _prune(self, now: float) -> None:
        for name, group in self._series.items():
            oldest = now - self._names[name]
            for key, found in list(group.items()):
                while found.points and found.points[0][0] < oldest:
                    found.points.popleft()
                if not found.points:
                    del group[key]


def at(found: Series, now: float) -> float | None:
    """What the series is at this time; None where it has ended by then or was not seen for too long."""
    if found.gone and (not found.points or found.points[-1][0] <= now):
        return None
    for time, value in reversed(found.points):
        if time <= now:
            return value if now - time < LOOKBACK_S else None
    return None


def within(found: Series, now: float, range_s: float) -> list[tuple[float, float]]:
    return [(time, value) for time, value in found.points if now - range_s < time <= now and not math.isnan(value)]


def _labels(text: str) -> dict[str, str]:
    return {name: re.sub(r"\\.", lambda m: _ESCAPES.get(m[0], m[0]), value) for name, value in _LABEL.findall(text)}


def _matches(labels: Mapping[str, str], matcher: tuple[str, str, str]) -> bool:
    label, operator, value = matcher
    found = labels.get(label, "")
    if operator in ("=", "!="):
        return (found == value) == (operator == "=")
    return bool(re.fullmatch(value, found)) == (operator == "=~")
