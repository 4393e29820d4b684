"""How long a replica that crashed stays down before the next try. Pure.

As kubelet: at once after the first crash, then doubling up to five minutes, forgotten after ten minutes of life. It
begins at 1 s where kubelet begins at 10 s: on one machine there is no image to pull, and a person waits.
"""

from typing import Final

BASE_S: Final = 1.0
CAP_S: Final = 300.0
FORGET_S: Final = 600.0


def crashes_after(crashes: int, now: float, last_start: float) -> int:
    """The count with a crash at `now` of a process that began at `last_start`."""
    return 1 if now - last_start >= FORGET_S else crashes + 1


def delay(crashes: int, now: float, last_start: float) -> float:
    """Seconds from the latest crash, at `now`, to the next start: 0, 1, 2, 4 … 300."""
    if crashes <= 1 or now - last_start >= FORGET_S:
        return 0.0
    return float(min(CAP_S, BASE_S * 2 ** min(crashes - 2, 30)))
