"""Which replicas are removed when there are too many. Pure."""

from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeVar

# Replicas that do not serve are stopped first.
_STOP_ORDER: Final = {"waiting": 0, "pending": 0, "unready": 1, "starting": 2, "waking": 2, "ready": 3}


class Removable(Protocol):
    """A replica; `started_at` orders by age."""

    @property
    def state(self) -> str: ...
    @property
    def started_at(self) -> Any: ...


R = TypeVar("R", bound=Removable)


def select_for_removal(replicas: Iterable[R], surplus: int) -> list[R]:
    """Return `surplus` replicas to remove: those that do not serve first, then the youngest."""
    by_age = sorted(replicas, key=lambda replica: replica.started_at, reverse=True)
    ordered = sorted(by_age, key=lambda replica: _STOP_ORDER.get(replica.state, 0))
    return ordered[: max(0, surplus)]
