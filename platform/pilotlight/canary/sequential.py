"""When a p-value is small enough to act on, though the data are looked at again and again. After statistics, for judge.

Whoever looks often enough sees harm in anything. So each look spends a part of one budget, ALPHA: look k may call
harm at most with chance ALPHA * 20 / ((k + 19) * (k + 20)), which adds up to ALPHA over all looks, however many there
are; tests of one look share its part. By the union bound a canary that is within its bounds and no worse than the
baseline is ever called bad with chance ALPHA at most, whatever windows the looks have in common.

When a share begins depends on what was seen before, and so does which data a look of comparisons has. Each share has
therefore its own part of the budget, and counts its looks anew. What earlier shares told is among its data (strata.py).
That does no harm: a share is left when its figures look fine, at the first look that may or at a later one, so what it
leaves behind looks no worse than chance alone would have it. One that is left otherwise, by hand or because the policy
lets pass what is unclear, leaves nothing behind (moves.py).

    look 1   0.00048     look 24   0.00011     look 100   0.000014     (all tests together, ALPHA = 0.01)
"""

from collections.abc import Sequence
from typing import Final, Literal

from pilotlight.canary.model import Measurement

ALPHA: Final = 0.01
HALF_LIFE: Final = 20  # looks after which half of the budget is spent
SUSPICIOUS: Final = 0.1  # below it nothing is proved, but nobody should go on as if nothing were

Finding = Literal["worse", "perhaps", "fine"]


def look_after(history: Sequence[Measurement]) -> int:
    return max((each.look for each in history), default=0) + 1


def spent(look: int, tests: int = 1) -> float:
    """What one of the tests of this look may spend."""
    return ALPHA * HALF_LIFE / ((look + HALF_LIFE - 1) * (look + HALF_LIFE)) / max(tests, 1)


def finding(p_value: float, look: int, tests: int) -> Finding:
    if p_value <= spent(look, tests):
        return "worse"
    return "perhaps" if p_value <= SUSPICIOUS else "fine"
