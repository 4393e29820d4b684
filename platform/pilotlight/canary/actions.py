"""Moves and their effect; early end of a comparison.

Significance level per look: alpha spending for repeated analyses of growing data.

Repeated tests of the same hypothesis find harm sooner or later by chance. So each look spends a part of one budget,
ALPHA: look k may reject with probability ALPHA * 20 / ((k + 19) * (k + 20)), which sums to ALPHA over any number of
looks; the tests of one look share its part. By the union bound, a canary within its bounds and no worse than the
baseline is ever failed with probability at most ALPHA, however the windows of the looks overlap.

When a weight begins depends on earlier data, and so does the data of a comparison. Each weight therefore has its own
part of the budget and counts its looks anew. The strata of earlier weights are among its data. That is safe: a weight
is left when its values look good, so its stratum looks no worse than chance has it. A weight that is left otherwise,
manually or while inconclusive, leaves no stratum.

    look 1   0.00048     look 24   0.00011     look 100   0.000014     (all tests together, ALPHA = 0.01)

Actions on a canary, and the state after each. Pure; executed by the runner.

An action whose result was not saved, because its runner died, is chosen and executed again.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.canary.types import Canary, Measurement, Phase, Stratum

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


PROMOTE_COMMANDS: Final = ("promote", "promote-full")


class Conditions(NamedTuple):
    """Observed conditions of the revision of the canary."""

    ready: bool  # it can serve requests
    failed: str = ""  # reason why it cannot start
    newer: bool = False  # a newer release has been deployed


class SetWeight(Struct, frozen=True):
    percent: int


class Wait(Struct, frozen=True):
    reason: str = ""


class Pause(Struct, frozen=True):
    reason: str


class Resume(Struct, frozen=True):
    """Continue after a pause; the service does not change."""


class Promote(Struct, frozen=True):
    """Send all requests to the canary; the stable revision keeps its replicas until Finish."""


class RollBack(Struct, frozen=True):
    reason: str


class SendProbes(Struct, frozen=True):
    """Send synthetic requests to the canary, and to the baseline if it has too few for a comparison."""

    count: int
    baseline: int = 0


class Finish(Struct, frozen=True):
    """End the canary: Promoted, so that the stable revision may go, or Superseded by a newer release."""

    phase: Phase
    reason: str = ""


Action = SetWeight | Wait | Pause | Resume | Promote | RollBack | SendProbes | Finish


def apply_action(canary: Canary, action: Action, at: str) -> Canary:
    """Return the canary after an action. The action fulfils a pending command, unless it is a Wait."""
    if isinstance(action, Wait):
        return replace(canary, reason=action.reason, wish="" if _is_fulfilled(canary) else canary.wish)
    if isinstance(action, SetWeight | Promote):
        return _with_weight(canary, action.percent if isinstance(action, SetWeight) else 100, at)
    if isinstance(action, SendProbes):
        return replace(canary, probes=canary.probes + 1, inconclusive=0)
    cleared: dict[str, object] = {"wish": "", "inconclusive": 0, "errors": 0}
    if isinstance(action, Pause):
        return replace(canary, **cleared, phase="Paused", reason=action.reason)
    if isinstance(action, Resume):
        return replace(canary, **cleared, phase="Progressing", reason="", probes=0)
    if isinstance(action, RollBack):
        return replace(canary, wish="", phase="RolledBack", weight=0, reason=action.reason, ended_at=at)
    return replace(canary, wish="", phase=action.phase, reason=action.reason, ended_at=at)


def _is_fulfilled(canary: Canary) -> bool:
    """Whether the state already is what the command requests."""
    if canary.wish in PROMOTE_COMMANDS:
        return canary.weight >= 100
    return canary.wish == ("pause" if canary.phase == "Paused" else "resume")


def _with_weight(canary: Canary, percent: int, at: str) -> Canary:
    step = next((index for index, each in enumerate(canary.policy.steps) if each >= percent), canary.step)
    return replace(
        canary, weight=percent, step=step, step_at=at, baked_s=0.0, weighed_s=canary.observed_s,
        weighed_looks=next_look(canary.measurements) - 1, strata=_comparable_strata(canary), stratum=None,
        phase="Progressing", reason="", wish="", inconclusive=0, probes=0,
    )  # fmt: skip


def _comparable_strata(canary: Canary) -> tuple[Stratum, ...]:
    """Return the strata that later looks may use."""
    # A manual promotion overrides the checks, so its data must not fail the next weight. Leaving a weight while
    # Inconclusive, if the policy allows it, selects data that look worse than chance has it.
    if canary.wish in PROMOTE_COMMANDS or canary.inconclusive:
        return ()
    return (*canary.strata, canary.stratum) if canary.stratum is not None else canary.strata


def restart(canary: Canary, revision: str, generation: int, at: str) -> Canary:
    """Return a canary of a newer release: the same policy from its first step, against the same stable revision."""
    return Canary(canary.policy, revision, canary.stable, generation, canary.stable_generation, at)
