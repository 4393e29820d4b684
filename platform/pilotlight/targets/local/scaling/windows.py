"""Windowed averages of load as in Knative's metrics: one bucket per second, over the window or its known part.

The gateway does not report idle backends, so a second without a sample counts as zero, except the last two, which may
still be on their way. After a gap as long as the window, averaging starts anew with the next sample.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pilotlight.targets.local.scaling.model import Observed, Sample

DIGITS: Final = 6
REPORT_DELAY_S: Final = 2  # a second is reported within this time after its end
# As Knative: a window's seconds make up this share of the weighted average; the decay is at least 0.2.
WEIGHT: Final = 0.9999
MIN_DECAY: Final = 0.2


def buckets(observed: Observed, metric: str, window_s: float, now: float) -> dict[int, float]:
    """Return the load by second, back to the first gap as long as the window."""
    load: dict[int, float] = {}
    concurrency = metric != "rps"
    pending = observed.waiting + observed.in_flight if concurrency else observed.waiting
    last = math.floor(now)
    for time, sample in _monotonic(observed.samples, now):
        at = math.floor(time)
        # Requests that arrived after the newest sample: count them now, or a wake-up would look idle.
        if pending and not load and now - time > REPORT_DELAY_S:
            load[last] = float(pending)
        if last - at >= window_s:
            break
        load[at] = load.get(at, 0.0) + (sample.concurrency if concurrency else sample.requests)
        last = at
    return load or ({last: float(pending)} if pending else {})


def _monotonic(samples: Sequence[Sample], now: float) -> Iterator[tuple[float, Sample]]:
    """Yield samples newest first. Samples from before a backward clock jump are shifted back by the jump."""
    jumped, newer = 0.0, now
    for sample in reversed(samples):
        at = sample.at - jumped
        if at > newer:
            jumped += at - newer
            at = newer
        yield at, sample
        newer = at


def average(load: Mapping[int, float], began: float | None, window_s: float, now: float, weighted: bool) -> float:
    """Return the average load over the window.

    `began`: since when the revision has been active, so that seconds without a sample count as zero load.
    """
    present = math.floor(now)
    size = math.ceil(window_s)
    oldest = present - size  # newest second outside the window
    inside = {at: value for at, value in load.items() if at > oldest}
    if not inside:
        return 0.0
    if weighted:
        decay = max(1 - math.pow(1 - WEIGHT, 1 / size), MIN_DECAY)
        return sum(value * decay * math.pow(1 - decay, present - at) for at, value in inside.items())
    newest = max(inside)
    # A newest bucket within the report delay ends the range: later seconds may only not have been reported yet.
    end = newest if present - newest <= REPORT_DELAY_S else present - 1
    first = min(load) if began is None else min(min(load), math.floor(began))
    seconds = min(end - first + 1, size - (present - end))
    return round(sum(inside.values()) / max(seconds, 1), DIGITS)
