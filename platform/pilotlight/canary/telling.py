"""What a change of a ledger means to a person: the events of canaries. Pure; targets write them down."""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from pilotlight.canary.model import Canary, Ledger

ENDS: Final = {"Promoted": "CanaryPromoted", "RolledBack": "CanaryRolledBack", "Superseded": "CanarySuperseded"}


class Told(NamedTuple):
    revision: str
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


def told(before: Ledger, after: Ledger) -> list[Told]:
    """Oldest first."""
    was, current = before.current, after.current
    if current is None:
        return []
    if was is not None and not _same(was, current):
        ended = next((each for each in after.past if _same(was, each)), None)
        earlier = [*_changes(was, ended)] if ended else []
        return [*earlier, *_started(current)]
    return [*_changes(was, current)] if was is not None else [*_started(current)]


def _same(one: Canary, other: Canary) -> bool:
    return (one.revision, one.started_at) == (other.revision, other.started_at)


def _started(canary: Canary) -> Iterator[Told]:
    steps = ", ".join(f"{step} %" for step in canary.policy.steps)
    yield Told(canary.revision, "CanaryStarted", f"beside {canary.stable}, in steps of {steps}")
    yield from _changes(canary, canary, fresh=True)


def _changes(was: Canary, now: Canary, *, fresh: bool = False) -> Iterator[Told]:
    if now.weight and (fresh or now.weight != was.weight) and now.phase not in ENDS:
        yield Told(now.revision, "CanaryStep", f"{now.weight} % of the requests")
    if now.phase == was.phase and not fresh:
        return
    if now.phase == "Paused":
        yield Told(now.revision, "CanaryPaused", now.reason or "by hand")
    elif now.phase == "Progressing" and not fresh:
        yield Told(now.revision, "CanaryResumed", f"goes on with {now.weight} %")
    elif now.phase in ENDS:
        bad: Literal["Normal", "Warning"] = "Warning" if now.phase == "RolledBack" else "Normal"
        yield Told(now.revision, ENDS[now.phase], now.reason or f"instead of {now.stable}", bad)
