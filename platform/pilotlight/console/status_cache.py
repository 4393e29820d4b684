"""Status cache of open consoles: services as rows.

It has no timer: a reader refreshes it, at most every `min_interval_s`, for all readers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import to_builtins

from pilotlight.targets.target import RevisionStatus, ServiceStatus

MIN_INTERVAL_S: Final = 0.25
REQUESTS_S: Final = 300.0  # period of a status' requests
DECIMALS: Final = 3  # more digits of a latency or a rate are noise, and would be sent as a change

ServiceRow = dict[str, Any]
ListStatuses = Callable[[], Awaitable[Sequence[ServiceStatus]]]


@dataclass(slots=True)
class StatusCache:
    list_statuses: ListStatuses
    min_interval_s: float = MIN_INTERVAL_S
    rows: Mapping[str, ServiceRow] = field(default_factory=dict)
    _refreshed: float = float("-inf")

    async def refresh(self, now: float) -> Mapping[str, ServiceRow]:
        """Return rows by service id, fetched again if older than `min_interval_s`. `now` is monotonic."""
        if now - self._refreshed >= self.min_interval_s:
            self._refreshed = now
            statuses = await self.list_statuses()
            self.rows = {f"{each.namespace}/{each.name}": row(each) for each in statuses}
        return self.rows


def per_second(revision: RevisionStatus) -> float:
    """Return the request rate that the target reports, else the mean over the period of `requests`."""
    return revision.requests / REQUESTS_S if revision.per_second is None else revision.per_second


def row(status: ServiceStatus) -> ServiceRow:
    fields: ServiceRow = rounded(to_builtins(status))
    fields["id"] = f"{status.namespace}/{status.name}"
    for revision, body in zip(status.revisions, fields["revisions"], strict=True):
        body["per_second"] = round(per_second(revision), 2)
    return fields


def rounded(value: Any) -> Any:
    """Round floats to three decimals, recursively."""
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


def changes(sent: Mapping[str, ServiceRow], rows: Mapping[str, ServiceRow]) -> tuple[list[ServiceRow], list[str]]:
    """Return rows that differ from those sent, and ids of deleted services."""
    changed = [each for name, each in rows.items() if sent.get(name) != each]
    return changed, sorted(sent.keys() - rows.keys())
