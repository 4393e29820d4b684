"""What open consoles look at: services as rows, with the recent past of their figures. One look serves all of them.

Nothing here ticks by itself: a look is taken when a reader asks for one, and no more often than every `rest_s`.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import to_builtins

from pilotlight.targets.target import RevisionStatus, ServiceStatus

REST_S: Final = 0.25
KEPT: Final = 600  # points of one service
KEPT_S: Final = 300.0
DECIMALS: Final = 3  # more of a latency or a rate is noise, and would be sent as a change

Row = dict[str, Any]
Look = Callable[[], Awaitable[Sequence[ServiceStatus]]]


class Point(NamedTuple):
    """Figures that hold from `at` on, until the next point. `at` is wall clock, as the browser's axis is."""

    at: float
    per_second: float
    p99_ms: float | None
    ready: int


@dataclass(slots=True)
class Watch:
    look: Look
    rest_s: float = REST_S
    rows: Mapping[str, Row] = field(default_factory=dict)
    past: dict[str, deque[Point]] = field(default_factory=dict)
    _looked: float = float("-inf")

    async def seen(self, now: float, wall: float) -> Mapping[str, Row]:
        """`now` is monotonic. What another reader has just seen is shown again."""
        if now - self._looked >= self.rest_s:
            self._looked = now
            statuses = await self.look()
            self.rows = {f"{each.namespace}/{each.name}": row(each) for each in statuses}
            self._remember(statuses, wall)
        return self.rows

    def _remember(self, statuses: Sequence[ServiceStatus], wall: float) -> None:
        for gone in self.past.keys() - self.rows.keys():
            del self.past[gone]
        for status in statuses:
            points = self.past.setdefault(f"{status.namespace}/{status.name}", deque(maxlen=KEPT))
            remember(points, point(status, wall))


def remember(points: "deque[Point]", fresh: Point) -> None:
    """Only what differs; of what is too old to be shown, the last is kept, since it holds until the next."""
    if not points or points[-1][1:] != fresh[1:]:
        points.append(fresh)
    while len(points) > 1 and points[1].at < fresh.at - KEPT_S:
        points.popleft()


def point(status: ServiceStatus, wall: float) -> Point:
    p99 = [each.p99_ms for each in status.revisions if each.p99_ms is not None]
    rate = sum(per_second(each) for each in status.revisions)
    ready = sum(each.ready for each in status.revisions)
    return Point(round(wall, 2), round(rate, 2), round(max(p99), 2) if p99 else None, ready)


def per_second(revision: RevisionStatus) -> float:
    """As far as the target tells; else the mean of the minutes that `requests` is over."""
    return revision.requests / KEPT_S if revision.per_second is None else revision.per_second


def row(status: ServiceStatus) -> Row:
    made: Row = rounded(to_builtins(status))
    made["id"] = f"{status.namespace}/{status.name}"
    for revision, told in zip(status.revisions, made["revisions"], strict=True):
        told["per_second"] = round(per_second(revision), 2)
    return made


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


def changes(sent: Mapping[str, Row], seen: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    """Rows that a reader has not been sent as they are, and names of those that are gone."""
    changed = [found for name, found in seen.items() if sent.get(name) != found]
    return changed, sorted(sent.keys() - seen.keys())
