"""How much of what brings nothing a peer may send: pings, settings, resets, empty frames. The clock is an argument.

All of these are right in themselves, and cost the one who reads them as much as the one who writes them, or more
(CVE-2023-44487, CVE-2019-9512 and its kin). So they are paid for: from an amount that time refills, and by answers that
were sent. Some clients ping once for each answer to measure the network, which earns them more than it costs.
"""

from typing import Final

MOST: Final = 1000.0
REFILL_A_SECOND: Final = 100.0
EARNED: Final = 3.0  # for an answer: a ping, the update of a window and a reset


YOUNG_S: Final = 0.02  # a stream that is reset before it is so old may have been opened for nothing else


class Ages:
    """Which streams are young, by two marks: a clock for each of them would cost every call."""

    __slots__ = ("_mark", "_old", "_then")

    def __init__(self, now: float) -> None:
        self._then, self._mark, self._old = (
            now,
            0,
            0,
        )  # when the mark was set; the last stream then, and at the one before

    def is_young(self, number: int, last: int, now: float) -> bool:
        """`last` is the newest stream. After a silence one is taken for younger than it is: the first of many."""
        if now - self._then >= YOUNG_S:
            self._then, self._mark, self._old = now, last, self._mark
        return number > self._old


class Allowance:
    __slots__ = ("_left", "_then")

    def __init__(self, now: float) -> None:
        self._left, self._then = MOST, now

    def spend(self, now: float, amount: int = 1) -> bool:
        """False when nothing is left."""
        self._left = min(MOST, self._left + (now - self._then) * REFILL_A_SECOND) - amount
        self._then = now
        return self._left >= 0

    def earn(self) -> None:
        self._left += EARNED
