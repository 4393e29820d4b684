"""Parking decisions: which models are idle, and which host copies to drop to stay within the memory budget.

Pure: the clock and the machine's memory are arguments. The pool acts on them.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

POLLS_PER_IDLE_PERIOD: Final = 4  # an idle model parks at most a quarter of the idle period late
MIN_POLL_S: Final = 0.05
MAX_POLL_S: Final = 5.0


class Activity(NamedTuple):
    """Request count of a model, and since when it has not changed."""

    counted: int
    since: float


def observe_activity(previous: Activity | None, counted: int, busy: bool, now: float) -> Activity:
    """Return the new activity; `busy` covers requests in flight, which are not counted yet."""
    if previous is None or busy or counted != previous.counted:
        return Activity(counted, now)
    return previous


def is_idle(activity: Activity, after_s: float, now: float) -> bool:
    return now - activity.since >= after_s


def poll_interval_s(after_s: float) -> float:
    """Seconds between two polls of the models' activity."""
    return min(max(after_s / POLLS_PER_IDLE_PERIOD, MIN_POLL_S), MAX_POLL_S)


class HostCopy(NamedTuple):
    """Host memory that holds one model's weights."""

    name: str
    size: int
    parked: bool
    since: float  # when the model was parked last


def copies_to_drop(copies: Sequence[HostCopy], needed: int, budget: int) -> list[str] | None:
    """Names of the copies to drop for `needed` bytes, least recently parked first; None if that is not enough.

    Only copies of awake models: that of a parked model is the only one.
    """
    missing = sum(copy.size for copy in copies) + needed - budget
    dropped: list[str] = []
    for copy in sorted(copies, key=lambda copy: copy.since):
        if missing <= 0:
            break
        if not copy.parked and copy.size:
            dropped.append(copy.name)
            missing -= copy.size
    return dropped if missing <= 0 else None


def budget_bytes(setting: str, machine: int, processes: int) -> int:
    """Budget of one of `processes` workers; `setting` is in bytes or a percentage of the machine's memory."""
    total = int(machine * float(setting[:-1]) / 100) if setting.endswith("%") else int(setting)
    return total // processes
