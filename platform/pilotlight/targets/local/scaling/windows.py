"""Averages over the last seconds of requests, as Knative takes them: a bucket a second, the window or what is of it.

The gateway is silent about a backend that nobody asks, so a second without a sample counts as zero; only the last two
may still be on their way and are left out. A window without any sample begins anew with the next one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pilotlight.targets.local.scaling.model import Observed, Sample

DIGITS: Final = 6
LATE_S: Final = 2  # a second is reported within this time after it ended
# The newest seconds of a weighted window make up this share of its average; a second weighs at least a fifth.
WEIGHT: Final = 0.9999
LEAST_DECAY: Final = 0.2


def buckets(observed: Observed, metric: str, window_s: float, now: float) -> dict[int, float]:
    """Load by second, back to the first gap as long as the window."""
    found: dict[int, float] = {}
    concurrency = metric != "rps"
    asked = observed.waiting + observed.in_flight if concurrency else observed.waiting
    last = math.floor(now)
    for time, sample in _put_right(observed.samples, now):
        at = math.floor(time)
        if asked and not found and now - time > LATE_S:  # requests are there that the last sample cannot know of
            found[last] = float(asked)
        if last - at >= window_s:
            break
        found[at] = found.get(at, 0.0) + (sample.concurrency if concurrency else sample.requests)
        last = at
    return found or ({last: float(asked)} if asked else {})


def _put_right(samples: Sequence[Sample], now: float) -> Iterator[tuple[float, Sample]]:
    """Newest first. Before a clock jumped back, times were ahead of it: those samples move back by the jump."""
    jumped, newer = 0.0, now
    for sample in reversed(samples):
        at = sample.at - jumped
        if at > newer:
            jumped += at - newer
            at = newer
        yield at, sample
        newer = at


def average(load: Mapping[int, float], began: float | None, window_s: float, now: float, weighted: bool) -> float:
    """`began`: since when a replica has been there, and silence with it has meant no requests."""
    present = math.floor(now)
    size = math.ceil(window_s)
    oldest = present - size  # the newest second that is out of the window
    inside = {at: value for at, value in load.items() if at > oldest}
    if not inside:
        return 0.0
    newest = max(inside)
    if weighted:
        return _weighted(inside, present, size)
    end = newest if present - newest <= LATE_S else present - 1
    first = min(load) if began is None else min(min(load), math.floor(began))
    seconds = min(end - first + 1, size - (present - end))
    return round(sum(inside.values()) / max(seconds, 1), DIGITS)


def _weighted(inside: Mapping[int, float], present: int, size: int) -> float:
    decay = max(1 - math.pow(1 - WEIGHT, 1 / size), LEAST_DECAY)
    return sum(value * decay * math.pow(1 - decay, present - at) for at, value in inside.items())
