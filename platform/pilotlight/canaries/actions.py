"""Actions on a canary, and the state after each. Pure; executed by the runner.

An action whose result was not saved, because its runner died, is chosen and executed again.
"""

from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.canaries.canary_state import Canary, Phase, Stratum
from pilotlight.canaries.statistics import next_look

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
        return replace(canary, reason=action.reason, command="" if _is_fulfilled(canary) else canary.command)
    if isinstance(action, SetWeight | Promote):
        percent = action.percent if isinstance(action, SetWeight) else 100
        step = next((index for index, each in enumerate(canary.policy.steps) if each >= percent), canary.step)
        return replace(
            canary, weight=percent, step=step, step_at=at, baked_s=0.0, weighed_s=canary.observed_s,
            weighed_looks=next_look(canary.measurements) - 1, strata=_comparable_strata(canary), stratum=None,
            phase="Progressing", reason="", command="", inconclusive=0, probes=0,
        )  # fmt: skip
    if isinstance(action, SendProbes):
        return replace(canary, probes=canary.probes + 1, inconclusive=0)
    cleared: dict[str, object] = {"command": "", "inconclusive": 0, "errors": 0}
    if isinstance(action, Pause):
        return replace(canary, **cleared, phase="Paused", reason=action.reason)
    if isinstance(action, Resume):
        return replace(canary, **cleared, phase="Progressing", reason="", probes=0)
    if isinstance(action, RollBack):
        return replace(canary, command="", phase="RolledBack", weight=0, reason=action.reason, ended_at=at)
    return replace(canary, command="", phase=action.phase, reason=action.reason, ended_at=at)


def _is_fulfilled(canary: Canary) -> bool:
    if canary.command in PROMOTE_COMMANDS:
        return canary.weight >= 100
    return canary.command == ("pause" if canary.phase == "Paused" else "resume")


def _comparable_strata(canary: Canary) -> tuple[Stratum, ...]:
    """Return the strata that later looks may use."""
    # A manual promotion overrides the checks, so its data must not fail the next weight. Leaving a weight while
    # Inconclusive, if the policy allows it, selects data that look worse than chance has it.
    if canary.command in PROMOTE_COMMANDS or canary.inconclusive:
        return ()
    return (*canary.strata, canary.stratum) if canary.stratum is not None else canary.strata


def restart(canary: Canary, revision: str, generation: int, at: str) -> Canary:
    """Return a canary of a newer release: the same policy from its first step, against the same stable revision."""
    return Canary(canary.policy, revision, canary.stable, generation, canary.stable_generation, at)
