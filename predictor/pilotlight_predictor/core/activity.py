"""Activity: whether requests still come, of a model or a whole server. Pure: the clock is an argument."""

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
