"""Replicas of the gateway exchange what callers have spent, and one quota holds over all of them."""

from dataclasses import dataclass

import msgspec

from pilotlight.gateway.auth import AccessAdmission
from pilotlight.gateway.cluster.demand import LoadsMessage
from pilotlight.gateway.cluster.quota_exchange import MAX_CALLERS, QuotaExchange
from pilotlight.gateway.routing_table import Route
from pilotlight.wire.service_access import Access, TokenQuota

ROUTE = Route("default", "llm", access=Access(("search/ada=" + "0" * 64,)), quota=TokenQuota(100, 1000))
DAY = 86_400.0


@dataclass
class Gateway:
    """The exchange of one replica, whose clocks stand still."""

    wall: float = 20_000 * DAY + 60
    clock: float = 1000.0

    def __post_init__(self) -> None:
        self.admission = AccessAdmission(clock=lambda: self.clock, wall=lambda: self.wall)
        self.exchange = QuotaExchange(self.admission, {("default", "llm"): ROUTE}.get)

    def spend(self, tokens: int, caller: str = "ada") -> None:
        self.admission.spend(ROUTE, caller, tokens)

    def broadcast(self, name: str, *others: "Gateway") -> None:
        message = msgspec.json.encode(LoadsMessage(spent=self.exchange.totals()))
        for other in others:
            other.exchange.receive(name, msgspec.json.decode(message, type=LoadsMessage).spent)

    def left(self, caller: str = "ada") -> tuple[float, int]:
        """Of the minute and of the day."""
        account = self.admission.quotas._account(("default", "llm", caller), ROUTE.quota, self.clock, self.wall)
        return account.left, 1000 - account.spent


def introduced() -> tuple[Gateway, Gateway]:
    one, two = Gateway(), Gateway()
    one.broadcast("one", two)
    two.broadcast("two", one)
    return one, two


def test_what_a_caller_spends_at_one_replica_is_taken_at_the_other_once() -> None:
    one, two = introduced()
    one.spend(60)
    for _ in range(3):
        one.broadcast("one", two)
        two.broadcast("two", one)
    assert one.left() == two.left() == (40, 940)
    one.spend(10)  # the message of it is lost
    one.spend(10)
    two.spend(50)
    one.broadcast("one", two)
    two.broadcast("two", one)
    assert one.left() == two.left() == (-30, 870)


def test_one_that_starts_learns_the_day_and_one_that_restarts_counts_from_zero() -> None:
    one, two = introduced()
    one.spend(300)
    two.spend(200)
    one.broadcast("one", two)
    two.broadcast("two", one)
    third = Gateway()
    one.broadcast("one", third)
    two.broadcast("two", third)
    assert third.left() == (100, 500), "the day's total, and no debt of minutes that are over"
    again = Gateway()  # in place of one, at its address
    two.broadcast("two", again)
    again.spend(20)
    again.broadcast("one", two, third)
    assert [each.left()[1] for each in (again, two, third)] == [480, 480, 480]
    third.exchange.retain(())
    one.broadcast("one", third)
    assert third.left()[1] == 480, "no more than is known"


def test_a_new_day_begins_with_nothing_and_callers_are_bounded() -> None:
    one, two = introduced()
    one.spend(300)
    one.broadcast("one", two)
    one.wall += DAY
    two.wall += DAY
    one.spend(5)
    one.broadcast("one", two)
    assert two.left()[1] == 995
    for number in range(MAX_CALLERS + 5):
        one.spend(1, str(number))
    assert len(one.exchange.totals()) == MAX_CALLERS


def test_a_service_without_a_quota_or_of_another_table_takes_nothing() -> None:
    one, two = introduced()
    two.exchange = QuotaExchange(two.admission, lambda key: None)
    two.exchange.receive("one", ())
    one.spend(60)
    one.broadcast("one", two)
    assert two.left() == (100, 1000)
