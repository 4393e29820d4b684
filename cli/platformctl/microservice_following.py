"""`microservice logs -f`: new lines between successive tails of a platform's log."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pilotlight.microservices.model import PlatformStatus

POLL_S: Final = 1.0
ENDED: Final = ("failed", "stopped", "gone")
MISSED: Final = "lines between were written faster than they were read"
ReadStatus = Callable[[], PlatformStatus]
Note = Callable[[str], None]


def follow(
    first: PlatformStatus, read_status: ReadStatus, tail: int, note: Note, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield log lines until the job ends; an unreachable platform is polled again."""
    yield from first.tail[-tail:] if tail > 0 else ()
    before, status = first.tail, first
    while status.state not in ENDED:
        sleep(POLL_S)
        status = read_status()
        if status.state == "unknown" or not status.tail:
            continue
        new = new_lines(before, status.tail)
        if new is None:
            note(MISSED)
        yield from status.tail if new is None else new
        before = status.tail


def new_lines(before: Sequence[str], after: Sequence[str]) -> Sequence[str] | None:
    """Return the lines of `after` that follow those of `before`; None if the two windows do not overlap.

    A last line that has grown is returned whole.
    """
    if not before:
        return after
    for overlap in range(min(len(before), len(after)), 0, -1):
        if _overlaps(before[-overlap:], after[:overlap]):
            return after[overlap:] if before[-1] == after[overlap - 1] else after[overlap - 1 :]
    return None


def _overlaps(end: Sequence[str], start: Sequence[str]) -> bool:
    """Compare lines; windows cut by bytes may lack the start of the first line and the end of the last."""
    if len(end) == 1:
        return _continues(end[0], start[0])
    first = end[0] == start[0] or bool(start[0] and end[0].endswith(start[0]))
    return first and list(end[1:-1]) == list(start[1:-1]) and _continues(end[-1], start[-1])


def _continues(line: str, later: str) -> bool:
    return line == later or bool(line and later.startswith(line))
