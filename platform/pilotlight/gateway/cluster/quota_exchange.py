"""Token quotas over all replicas of the gateway: each sends the others what callers have spent at it today.

The messages have totals of the day, so that the next one makes up for one that was lost. A replica that starts learns
from the first message of another what all of them know.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.control_link import Spent
from pilotlight.gateway.routing_table import Route, RouteKey

MAX_CALLERS: Final = 1000  # of a message: those that were here last
MAX_KNOWN: Final = 20_000  # callers of one replica


class CallerTotal(NamedTuple):
    """Tokens of a caller on a day since the epoch: at the sender, and at all replicas as far as it knows."""

    namespace: str
    service: str
    caller: str
    day: int
    own: int
    total: int


class QuotaExchange:
    """`route` returns the route in force."""

    def __init__(self, admission: AccessAdmission, route: Callable[[RouteKey], Route | None]) -> None:
        self._admission, self._route = admission, route
        self._known: dict[str, dict[tuple[str, str, str], tuple[int, int]]] = {}  # day and own tokens, by sender

    def totals(self) -> tuple[CallerTotal, ...]:
        return tuple(
            CallerTotal(*caller, *spent)  # type: ignore[misc] # a key of this admission
            for caller, *spent in self._admission.quotas.totals(MAX_CALLERS)
        )

    def receive(self, sender: str, totals: Iterable[CallerTotal]) -> None:
        """Take what callers have spent at another replica from their quotas here."""
        known = self._known.get(sender)
        if first := known is None or len(known) > MAX_KNOWN:
            known = self._known[sender] = {}
        for each in totals:
            key, route = each[:3], self._route((each.namespace, each.service))
            day, before = known.get(key, (each.day, 0))
            known[key] = (each.day, each.own)
            if first:  # no debt to the minute: it may be hours old
                self._admission.restore(Spent(each.day, ((*key, each.total),)))
            elif route is not None:
                continued = day == each.day and each.own >= before  # else its day is new, or its process
                self._admission.spend(route, each.caller, each.own - before if continued else each.own, own=False)

    def retain(self, senders: Collection[str]) -> None:
        """Forget other senders than these."""
        self._known = {sender: known for sender, known in self._known.items() if sender in senders}
