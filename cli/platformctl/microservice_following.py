"""`microservice logs -f`: platforms tell the last lines of a log; what is new in them since the last look goes on."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pilotlight.microservices.model import Seen

EVERY_S: Final = 1.0
ENDED: Final = ("failed", "stopped", "gone")
MISSED: Final = "lines between were written faster than they were read"
Look = Callable[[], Seen]
Note = Callable[[str], None]


def follow(
    first: Seen, look: Look, tail: int, note: Note, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Until it ends. What cannot be asked for a moment is asked again: a log goes on when its platform is back."""
    yield from first.tail[-tail:] if tail > 0 else ()
    before, seen = first.tail, first
    while seen.state not in ENDED:
        sleep(EVERY_S)
        seen = look()
        if seen.state == "unknown" or not seen.tail:
            continue
        new = fresh(before, seen.tail)
        if new is None:
            note(MISSED)
        yield from seen.tail if new is None else new
        before = seen.tail


def fresh(before: Sequence[str], now: Sequence[str]) -> Sequence[str] | None:
    """The lines of `now` after those that were seen: where the end of one window meets the beginning of the next.
    None where they do not meet. A last line that has grown meanwhile is new, as a whole."""
    if not before:
        return now
    for kept in range(min(len(before), len(now)), 0, -1):
        if _meet(before[-kept:], now[:kept]):
            return now[kept:] if before[-1] == now[kept - 1] else now[kept - 1 :]
    return None


def _meet(end: Sequence[str], start: Sequence[str]) -> bool:
    """Where a window is cut by bytes its first line may lack its beginning, and the last one may not be finished."""
    if len(end) == 1:
        return _grown(end[0], start[0])
    first = end[0] == start[0] or bool(start[0] and end[0].endswith(start[0]))
    return first and list(end[1:-1]) == list(start[1:-1]) and _grown(end[-1], start[-1])


def _grown(line: str, later: str) -> bool:
    return line == later or bool(line and later.startswith(line))
