"""Crash backoff of replicas. Pure.

As the kubelet's CrashLoopBackOff: at once after the first crash, then doubling up to 5 min, reset after 10 min of life.
It starts at 1 s instead of 10 s: there is no image to pull.
"""

from typing import Final

BASE_S: Final = 1.0
CAP_S: Final = 300.0
FORGET_S: Final = 600.0


def crashes_after(crashes: int, now: float, last_start: float) -> int:
    """Return the crash count including one at `now` of a process started at `last_start`."""
    return 1 if now - last_start >= FORGET_S else crashes + 1


def delay(crashes: int, now: float, last_start: float) -> float:
    """Return the seconds from a crash at `now` to the next start: 0, 1, 2, 4 … 300."""
    if crashes <= 1 or now - last_start >= FORGET_S:
        return 0.0
    return float(min(CAP_S, BASE_S * 2 ** min(crashes - 2, 30)))
