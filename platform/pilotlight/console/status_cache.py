"""Status cache of open consoles: services as rows, with the recent history of their figures.

It has no timer: a reader refreshes it, at most every `min_interval_s`, for all readers.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import to_builtins

from pilotlight.targets.target import RevisionStatus, ServiceStatus

MIN_INTERVAL_S: Final = 0.25
MAX_POINTS: Final = 600  # per service
HISTORY_S: Final = 300.0
DECIMALS: Final = 3  # more digits of a latency or a rate are noise, and would be sent as a change

ServiceRow = dict[str, Any]
ListStatuses = Callable[[], Awaitable[Sequence[ServiceStatus]]]


class Point(NamedTuple):
    """Figures valid from `at`, wall clock, until the next point."""

    at: float
    per_second: float
    p99_ms: float | None
    ready: int


@dataclass(slots=True)
class StatusCache:
    list_statuses: ListStatuses
    min_interval_s: float = MIN_INTERVAL_S
    rows: Mapping[str, ServiceRow] = field(default_factory=dict)
    history: dict[str, deque[Point]] = field(default_factory=dict)
    _refreshed: float = float("-inf")

    async def refresh(self, now: float, wall: float) -> Mapping[str, ServiceRow]:
        """Return rows by service id, fetched again if older than `min_interval_s`. `now` is monotonic."""
        if now - self._refreshed >= self.min_interval_s:
            self._refreshed = now
            statuses = await self.list_statuses()
            self.rows = {f"{each.namespace}/{each.name}": row(each) for each in statuses}
            for gone in self.history.keys() - self.rows.keys():
                del self.history[gone]
            for status in statuses:
                points = self.history.setdefault(f"{status.namespace}/{status.name}", deque(maxlen=MAX_POINTS))
                append_point(points, point(status, wall))
        return self.rows


def append_point(points: "deque[Point]", fresh: Point) -> None:
    """Append a point that differs from the last. Drop old ones, except the last before the period: it still holds."""
    if not points or points[-1][1:] != fresh[1:]:
        points.append(fresh)
    while len(points) > 1 and points[1].at < fresh.at - HISTORY_S:
        points.popleft()


def point(status: ServiceStatus, wall: float) -> Point:
    p99 = [each.p99_ms for each in status.revisions if each.p99_ms is not None]
    rate = sum(per_second(each) for each in status.revisions)
    ready = sum(each.ready for each in status.revisions)
    return Point(round(wall, 2), round(rate, 2), round(max(p99), 2) if p99 else None, ready)


def per_second(revision: RevisionStatus) -> float:
    """Return the request rate that the target reports, else the mean over the period of `requests`."""
    return revision.requests / HISTORY_S if revision.per_second is None else revision.per_second


def row(status: ServiceStatus) -> ServiceRow:
    fields: ServiceRow = rounded(to_builtins(status))
    fields["id"] = f"{status.namespace}/{status.name}"
    for revision, body in zip(status.revisions, fields["revisions"], strict=True):
        body["per_second"] = round(per_second(revision), 2)
    return fields


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


def changes(sent: Mapping[str, ServiceRow], rows: Mapping[str, ServiceRow]) -> tuple[list[ServiceRow], list[str]]:
    """Return rows that differ from those sent, and ids of deleted services."""
    changed = [each for name, each in rows.items() if sent.get(name) != each]
    return changed, sorted(sent.keys() - rows.keys())
