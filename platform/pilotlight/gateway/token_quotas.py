"""Token quotas of callers: a budget that refills over a minute, and one for each day (UTC), in bounded memory.

A request is admitted while its caller has tokens left, since what it will use is not known before its response; what it
uses beyond is a debt to the minute's budget. Clocks are arguments.
"""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pilotlight.wire.service_access import Refusal, TokenQuota
from pilotlight.wire.token_bucket import MAX_CLIENTS

MINUTE: Final = 60.0
DAY: Final = 86_400


@dataclass(slots=True)
class _Account:
    left: float  # of the minute's budget at `at`; below 0: a debt
    at: float
    day: int = 0  # since the epoch
    spent: int = 0  # on that day
    own: int = 0  # of `spent`, at this gateway


class TokenQuotas:
    """Accounts by caller. The least recently used one beyond `max_callers` is dropped, and starts full again.

    `now` is monotonic, `wall` is Unix time.
    """

    def __init__(self, max_callers: int = MAX_CLIENTS) -> None:
        self._max_callers = max_callers
        self._accounts: OrderedDict[Hashable, _Account] = OrderedDict()

    def check(self, caller: Hashable, quota: TokenQuota, realm: str, now: float, wall: float) -> Refusal | None:
        """Return the refusal of a request whose caller has no tokens left."""
        account = self._account(caller, quota, now, wall)
        if quota.per_day and account.spent >= quota.per_day:
            wait = (account.day + 1) * DAY - wall
            return _refusal(realm, quota.per_day, "day (UTC)", wait)
        if quota.per_minute and account.left <= 0:
            wait = (1 - account.left) * MINUTE / quota.per_minute
            return _refusal(realm, quota.per_minute, "minute", wait)
        return None

    def spend(
        self, caller: Hashable, quota: TokenQuota, tokens: int, now: float, wall: float, *, own: bool = True
    ) -> None:
        account = self._account(caller, quota, now, wall)
        account.left -= tokens
        account.spent += tokens
        account.own += tokens if own else 0

    def totals(self, most: int) -> Iterator[tuple[Hashable, int, int, int]]:
        """Yield callers that were here last with day, tokens at this gateway, and all that it knows of."""
        accounts = islice(reversed(self._accounts.items()), most)
        return ((caller, each.day, each.own, each.spent) for caller, each in accounts if each.spent)

    def restore(self, caller: Hashable, day: int, spent: int, now: float) -> None:
        """Set what the caller has spent on a day, as it was recorded before a restart."""
        account = self._accounts.setdefault(caller, _Account(math.inf, now, day))
        if account.day <= day:
            known = account.day == day
            account.spent, account.own = max(spent, account.spent if known else 0), account.own if known else 0
            account.day = day

    def _account(self, caller: Hashable, quota: TokenQuota, now: float, wall: float) -> _Account:
        account = self._accounts.pop(caller, None) or _Account(math.inf, now)
        refilled = account.left + (now - account.at) * quota.per_minute / MINUTE
        account.left, account.at = min(float(quota.per_minute), refilled), now
        if account.day != (day := int(wall // DAY)):
            account.day, account.spent, account.own = day, 0, 0
        self._accounts[caller] = account
        if len(self._accounts) > self._max_callers:
            self._accounts.popitem(last=False)
        return account


def _refusal(realm: str, limit: int, period: str, wait: float) -> Refusal:
    seconds = str(max(1, math.ceil(wait)))
    headers = {
        "Retry-After": seconds,
        "X-RateLimit-Limit-Tokens": str(limit),
        "X-RateLimit-Remaining-Tokens": "0",
        "X-RateLimit-Reset-Tokens": f"{seconds}s",
    }
    message = f"{realm} allows each caller {limit} tokens a {period}; try again in {seconds} s"
    return Refusal(429, message, headers)
