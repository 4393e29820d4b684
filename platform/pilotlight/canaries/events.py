"""Events of canaries, derived from changes of the stored history. Pure; targets record them."""

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from pilotlight.canaries.canary_state import Canary, CanaryHistory

ENDS: Final = {"Promoted": "CanaryPromoted", "RolledBack": "CanaryRolledBack", "Superseded": "CanarySuperseded"}


class CanaryEvent(NamedTuple):
    revision: str
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


def canary_events(before: CanaryHistory, after: CanaryHistory) -> list[CanaryEvent]:
    """Return the events of a change, oldest first."""
    previous, current = before.current, after.current
    if current is None:
        return []
    if previous is not None and not _same(previous, current):
        ended = next((each for each in after.past if _same(previous, each)), None)
        of_previous = [*_changes(previous, ended)] if ended else []
        return [*of_previous, *_started(current)]
    return [*_changes(previous, current)] if previous is not None else [*_started(current)]


def _same(one: Canary, other: Canary) -> bool:
    return (one.revision, one.started_at) == (other.revision, other.started_at)


def _started(canary: Canary) -> Iterator[CanaryEvent]:
    steps = ", ".join(f"{step} %" for step in canary.policy.steps)
    yield CanaryEvent(canary.revision, "CanaryStarted", f"next to {canary.stable}, in steps of {steps}")
    yield from _changes(canary, canary, fresh=True)


def _changes(previous: Canary, current: Canary, *, fresh: bool = False) -> Iterator[CanaryEvent]:
    if current.weight and (fresh or current.weight != previous.weight) and current.phase not in ENDS:
        yield CanaryEvent(current.revision, "CanaryStep", f"{current.weight} % of the requests")
    if current.phase == previous.phase and not fresh:
        return
    if current.phase == "Paused":
        yield CanaryEvent(current.revision, "CanaryPaused", current.reason or "paused manually")
    elif current.phase == "Progressing" and not fresh:
        yield CanaryEvent(current.revision, "CanaryResumed", f"continues with {current.weight} %")
    elif current.phase in ENDS:
        severity: Literal["Normal", "Warning"] = "Warning" if current.phase == "RolledBack" else "Normal"
        message = current.reason or f"instead of {current.stable}"
        yield CanaryEvent(current.revision, ENDS[current.phase], message, severity)
