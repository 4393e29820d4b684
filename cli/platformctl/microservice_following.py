"""`microservice logs -f`: platforms tell the last lines of a log; what is new in them since the last look goes on."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pilotlight.microservices.model import Seen

EVERY_S: Final = 1.0
ENDED: Final = ("failed", "stopped", "gone")
MISSED: Final = "… lines between were written faster than they were read"
Look = Callable[[], Seen]


def follow(first: Seen, look: Look, tail: int, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Until it ends. What cannot be asked for a moment is asked again: a log goes on when its platform is back."""
    yield from first.tail[-tail:] if tail > 0 else ()
    before, seen = first.tail, first
    while seen.state not in ENDED:
        sleep(EVERY_S)
        seen = look()
        if seen.state != "unknown":
            yield from fresh(before, seen.tail)
            before = seen.tail or before


def fresh(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """The lines of `now` after those that were seen: where the end of one window meets the beginning of the next."""
    if not before:
        return now
    for kept in range(min(len(before), len(now)), 0, -1):
        if tuple(before[-kept:]) == tuple(now[:kept]):
            return now[kept:]
    return (MISSED, *now) if now else ()
