"""What may be done with a canary, and what is kept of it afterwards. Pure: decided by steps, made true by acting.

A move that was made and not kept, because its runner died, is decided again and made again.
"""

from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pilotlight.canary.model import Canary, Phase, Stratum
from pilotlight.canary.sequential import look_after

PROMOTING: Final = ("promote", "promote-full")


class Facts(NamedTuple):
    """What runs."""

    ready: bool  # the canary's revision can take requests
    failed: str = ""  # why it never will
    newer: bool = False  # another release than this canary's has been deployed since


class SetWeight(Struct, frozen=True):
    percent: int


class Wait(Struct, frozen=True):
    reason: str = ""


class Pause(Struct, frozen=True):
    reason: str


class Resume(Struct, frozen=True):
    """Goes on after a pause; nothing runs differently."""


class Promote(Struct, frozen=True):
    """All requests to the canary; the stable side keeps its replicas until Finish."""


class RollBack(Struct, frozen=True):
    reason: str


class Probe(Struct, frozen=True):
    """Synthetic requests to the canary, and to the baseline where that has too few to be compared with."""

    count: int
    baseline: int = 0


class Finish(Struct, frozen=True):
    """Nothing is left to move: Promoted, and the stable side may go, or Superseded by a newer release."""

    phase: Phase
    reason: str = ""


Move = SetWeight | Wait | Pause | Resume | Promote | RollBack | Probe | Finish


def applied(canary: Canary, move: Move, at: str) -> Canary:
    """After the move has been made. A wish is fulfilled by it, unless it still waits."""
    if isinstance(move, Wait):
        return replace(canary, reason=move.reason, wish="" if _granted(canary) else canary.wish)
    if isinstance(move, SetWeight | Promote):
        return _weighted(canary, move.percent if isinstance(move, SetWeight) else 100, at)
    if isinstance(move, Probe):
        return replace(canary, probes=canary.probes + 1, inconclusive=0)
    going: dict[str, object] = {"wish": "", "inconclusive": 0, "errors": 0}
    if isinstance(move, Pause):
        return replace(canary, **going, phase="Paused", reason=move.reason)
    if isinstance(move, Resume):
        return replace(canary, **going, phase="Progressing", reason="", probes=0)
    if isinstance(move, RollBack):
        return replace(canary, wish="", phase="RolledBack", weight=0, reason=move.reason, ended_at=at)
    return replace(canary, wish="", phase=move.phase, reason=move.reason, ended_at=at)


def _granted(canary: Canary) -> bool:
    """Whether the wish is for what is already so."""
    if canary.wish in PROMOTING:
        return canary.weight >= 100
    return canary.wish == ("pause" if canary.phase == "Paused" else "resume")


def _weighted(canary: Canary, percent: int, at: str) -> Canary:
    step = next((index for index, each in enumerate(canary.policy.steps) if each >= percent), canary.step)
    return replace(
        canary, weight=percent, step=step, step_at=at, baked_s=0.0, weighed_s=canary.observed_s,
        weighed_looks=look_after(canary.measurements) - 1, strata=_told_so_far(canary), stratum=None,
        phase="Progressing", reason="", wish="", inconclusive=0, probes=0,
    )  # fmt: skip


def _told_so_far(canary: Canary) -> tuple[Stratum, ...]:
    """Who promotes by hand, whatever the checks say, does not want them to say it again at the next share. And of a
    share that was left though it was unclear, as the policy may want, the data look worse than chance has it."""
    if canary.wish in PROMOTING or canary.inconclusive:
        return ()
    return (*canary.strata, canary.stratum) if canary.stratum is not None else canary.strata


def restarted(canary: Canary, revision: str, generation: int, at: str) -> Canary:
    """The canary of a newer release: the same policy from its first step, against the same stable side."""
    return Canary(canary.policy, revision, canary.stable, generation, canary.stable_generation, at)
