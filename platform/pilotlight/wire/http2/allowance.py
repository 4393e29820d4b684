"""Token bucket against floods of frames without payload: PING, SETTINGS, RST_STREAM, empty DATA.

Each is valid by itself, but costs the server as much as the client or more (CVE-2023-44487, CVE-2019-9512 and
related). Tokens come back with time and with every response. Clients that ping once per response to estimate the
bandwidth-delay product earn more than they spend. The clock is an argument.
"""

from typing import Final

MAX_TOKENS: Final = 1000.0
REFILL_PER_S: Final = 100.0
TOKENS_PER_RESPONSE: Final = 3.0  # per response: enough for a PING, a WINDOW_UPDATE and a RST_STREAM
YOUNG_S: Final = 0.02  # a stream reset before this age counts as rapid reset (CVE-2023-44487)


class StreamAges:
    """Ages of streams by two marks, since a timestamp per stream would cost every call."""

    __slots__ = ("_mark", "_old", "_then")

    def __init__(self, now: float) -> None:
        # Time of the newest mark, the highest stream id at that time, and the highest id at the mark before it.
        self._then, self._mark, self._old = now, 0, 0

    def is_young(self, number: int, last: int, now: float) -> bool:
        """Whether a stream is younger than YOUNG_S; `last` is the newest stream id. After a pause the marks are old, so
        the first stream may count as younger than it is."""
        if now - self._then >= YOUNG_S:
            self._then, self._mark, self._old = now, last, self._mark
        return number > self._old


class FloodLimiter:
    __slots__ = ("_left", "_then")

    def __init__(self, now: float) -> None:
        self._left, self._then = MAX_TOKENS, now

    def spend(self, now: float, amount: int = 1) -> bool:
        """Take tokens; False if none are left."""
        self._left = min(MAX_TOKENS, self._left + (now - self._then) * REFILL_PER_S) - amount
        self._then = now
        return self._left >= 0

    def earn(self) -> None:
        self._left += TOKENS_PER_RESPONSE
