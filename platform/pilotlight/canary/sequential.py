"""Significance level per look: alpha spending for repeated analyses of growing data.

Repeated tests of the same hypothesis find harm sooner or later by chance. So each look spends a part of one budget,
ALPHA: look k may reject with probability ALPHA * 20 / ((k + 19) * (k + 20)), which sums to ALPHA over any number of
looks; the tests of one look share its part. By the union bound, a canary within its bounds and no worse than the
baseline is ever failed with probability at most ALPHA, however the windows of the looks overlap.

When a weight begins depends on earlier data, and so does the data of a comparison. Each weight therefore has its own
part of the budget and counts its looks anew. The strata of earlier weights are among its data. That is safe: a weight
is left when its values look good, so its stratum looks no worse than chance has it. A weight that is left otherwise,
manually or while inconclusive, leaves no stratum.

    look 1   0.00048     look 24   0.00011     look 100   0.000014     (all tests together, ALPHA = 0.01)
"""

from collections.abc import Sequence
from typing import Final, Literal

from pilotlight.canary.model import Measurement

ALPHA: Final = 0.01
HALF_LIFE: Final = 20  # looks after which half of the budget is spent
SUSPICIOUS: Final = 0.1  # p-value: not significant, but too low to proceed

Finding = Literal["worse", "perhaps", "fine"]


def next_look(history: Sequence[Measurement]) -> int:
    """Return the number of the next look, from 1."""
    return max((each.look for each in history), default=0) + 1


def alpha_spent(look: int, tests: int = 1) -> float:
    """Return the significance level of one of the tests of a look."""
    # Telescoping sum: HALF_LIFE * (1 / (look + HALF_LIFE - 1) - 1 / (look + HALF_LIFE)), so all looks add up to ALPHA.
    # Slower than geometric decay, so that late looks keep some power.
    return ALPHA * HALF_LIFE / ((look + HALF_LIFE - 1) * (look + HALF_LIFE)) / max(tests, 1)


def assess(p_value: float, look: int, tests: int) -> Finding:
    """Return the finding of a p-value at a look with this number of tests."""
    if p_value <= alpha_spent(look, tests):
        return "worse"
    return "perhaps" if p_value <= SUSPICIOUS else "fine"
