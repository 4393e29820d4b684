"""Next action of a canary, from stored state, judgement and observed conditions. Pure.

Each tick the runner calls `add_elapsed`, `record_judgement` if a measurement was due, and `next_action`; it executes
the action at the target, calls `apply_action` and saves the result.
"""

from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from pilotlight.canaries import statistics
from pilotlight.canaries.actions import (
    PROMOTE_COMMANDS,
    Action,
    Conditions,
    Finish,
    Pause,
    Promote,
    Resume,
    RollBack,
    SendProbes,
    SetWeight,
    Wait,
)
from pilotlight.canaries.analysis import Judgement
from pilotlight.canaries.canary_state import ENDED, MAX_MEASUREMENTS, Canary

ERROR_LIMIT: Final = 4  # consecutive measurement errors before the canary is paused
IDLE_LOOKS: Final = 8  # looks without a new request after which traffic counts as idle
PAUSED_MANUALLY: Final = "paused manually"
AWAITING_PROMOTION: Final = "every check passed; platformctl canary promote gives it all traffic"
MIN_COMPARISON_S: Final = 8.0  # a shorter window may contain no scrape, which would look like no traffic
PROBE_LOOKS: Final = 8  # looks after probes within which these must have been scraped


def add_elapsed(canary: Canary, seconds: float, conditions: Conditions) -> Canary:
    """Add the time since the last tick; negative times are ignored. Only a ready canary bakes."""
    if canary.phase in ENDED or not seconds > 0:
        return canary
    paused, has_traffic = canary.phase == "Paused", canary.weight > 0
    return replace(
        canary,
        elapsed_s=canary.elapsed_s + (0.0 if paused else seconds),
        observed_s=canary.observed_s + (seconds if has_traffic else 0.0),
        baked_s=canary.baked_s + (seconds if has_traffic and conditions.ready and not paused else 0.0),
    )


def comparison_window_s(canary: Canary) -> float:
    """Return how far back both variants may be compared: only while their weights were constant."""
    # If both variants slow down together, the one with later requests looks worse: a window must not mix weights. The
    # first interval after a change is left out too, because scrapes are late. The first weight follows no other.
    settling = canary.policy.interval_s if canary.weighed_s else 0.0
    return max(canary.observed_s - canary.weighed_s - settling, 0.0)


def record_judgement(canary: Canary, judgement: Judgement) -> Canary:
    """Add one look. Only success clears failures: an inconclusive look proves nothing."""
    verdict = judgement.verdict
    failures = canary.failures + 1 if verdict == "Failed" else canary.failures
    return replace(
        canary,
        measurements=(*canary.measurements, *judgement.measurements)[-MAX_MEASUREMENTS:],
        failures=0 if verdict == "Successful" else failures,
        inconclusive=canary.inconclusive + 1 if verdict == "Inconclusive" and _baked(canary) else 0,
        errors=canary.errors + 1 if verdict == "Error" else 0,
        stratum=statistics.to_stratum(judgement.pair) if judgement.pair is not None else canary.stratum,
    )


def next_action(canary: Canary, judgement: Judgement | None, conditions: Conditions) -> Action:
    """Return the next action; what ends a canary precedes what advances it. `judgement` is that of this tick, None if
    no measurement was due."""
    if canary.phase in ENDED:
        return Wait(canary.reason)
    return _ending(canary, conditions) or _requested(canary, conditions) or _advance(canary, judgement)


def _ending(canary: Canary, conditions: Conditions) -> Action | None:
    # Also while paused: a canary that waits for a decision must not serve errors.
    if conditions.newer:
        return Finish("Superseded", "a newer release was deployed")
    if canary.command == "abort":
        return RollBack("aborted manually")
    if conditions.failed:
        return RollBack(f"{canary.revision} does not start: {conditions.failed}")
    if canary.failures >= max(canary.policy.failure_limit, 1):
        return RollBack(_last_reason(canary, "Failed"))
    late = canary.elapsed_s > canary.policy.deadline_s and canary.weight < 100 and canary.phase != "Paused"
    return RollBack(f"steps not finished within the deadline of {canary.policy.deadline_s:g} s") if late else None


def _requested(canary: Canary, conditions: Conditions) -> Action | None:
    """Return the action of a command or of a pause; None if the canary goes on by itself."""
    paused, promoted = canary.phase == "Paused", canary.weight >= 100
    if canary.command == "pause":
        return Wait(canary.reason) if paused else Pause(PAUSED_MANUALLY)
    if not conditions.ready:
        return Wait(f"{canary.revision} is not ready")
    if canary.command in PROMOTE_COMMANDS and promoted:
        return _finish_promotion(canary)
    if canary.command in PROMOTE_COMMANDS:
        return Promote() if canary.command == "promote-full" else _next_step(canary)
    if paused:
        return Resume() if canary.command == "resume" else Wait(canary.reason)
    return _finish_promotion(canary) if promoted else None


def _finish_promotion(canary: Canary) -> Action:
    left = canary.policy.keep_stable_s - canary.baked_s
    return Wait(f"{canary.stable} keeps its replicas for another {left:.0f} s") if left > 0 else Finish("Promoted")


def _advance(canary: Canary, judgement: Judgement | None) -> Action:
    weight = canary.policy.steps[canary.step]
    if canary.weight != weight:
        return SetWeight(weight) if weight < 100 else _promotion_gate(canary)
    if canary.errors >= ERROR_LIMIT:
        return Pause(f"{canary.errors} measurements in a row failed: {_last_reason(canary, 'Error')}")
    if judgement is None or not _baked(canary):
        left = canary.policy.bake_s - canary.baked_s
        baking = f"at {canary.weight} % for another {left:.0f} s at least"
        return Wait(baking if left > 0 else "waiting for the next measurement")
    if judgement.verdict == "Inconclusive":
        missing = judgement.missing_requests or judgement.missing_baseline_requests
        return (_too_few_requests if missing else _inconclusive)(canary, judgement)
    return _next_step(canary) if judgement.verdict == "Successful" else Wait(judgement.reason)


def _too_few_requests(canary: Canary, judgement: Judgement) -> Action:
    """Apply on_no_data: no data is neither failure nor success."""
    # While requests arrive, wait for them: probes among them would bias the metrics of users.
    if _has_traffic(canary) and canary.inconclusive < canary.policy.inconclusive_limit:
        return Wait(judgement.reason)
    if canary.policy.compare and comparison_window_s(canary) < MIN_COMPARISON_S:
        return Wait(judgement.reason)  # the missing requests of the baseline are unknown yet
    reason = f"too few requests after {canary.baked_s:.0f} s: {judgement.reason}"
    if canary.policy.on_no_data == "pass":
        return _next_step(canary)
    if canary.policy.on_no_data == "fail":
        return RollBack(reason)
    if canary.policy.on_no_data == "probe" and not canary.probes:
        return SendProbes(judgement.missing_requests, judgement.missing_baseline_requests)
    probing = canary.policy.on_no_data == "probe" and canary.inconclusive < PROBE_LOOKS
    return Wait("probes were sent and are not in the metrics yet") if probing else Pause(reason)


def _has_traffic(canary: Canary) -> bool:
    """Whether requests arrived within the last IDLE_LOOKS looks."""
    requests_by_look: dict[int, int] = {}
    for each in canary.measurements:
        requests_by_look[each.look] = max(each.requests, requests_by_look.get(each.look, 0))
    counts = [0, *(requests_by_look[look] for look in sorted(requests_by_look))]  # before the first look: none
    return any(later > earlier for earlier, later in pairwise(counts[-IDLE_LOOKS - 1 :]))


def _inconclusive(canary: Canary, judgement: Judgement) -> Action:
    if canary.inconclusive < canary.policy.inconclusive_limit:
        return Wait(judgement.reason)
    if canary.policy.on_inconclusive == "pass":
        return _next_step(canary)
    return (RollBack if canary.policy.on_inconclusive == "fail" else Pause)(judgement.reason)


def _next_step(canary: Canary) -> Action:
    """Return the action for the weight of the next step; after the last one the promotion."""
    weight = next((step for step in canary.policy.steps if step > canary.weight), 100)
    return SetWeight(weight) if weight < 100 else _promotion_gate(canary)


def _promotion_gate(canary: Canary) -> Action:
    """Promote, or pause for the manual promotion of --manual."""
    if canary.policy.auto_promote or canary.command in PROMOTE_COMMANDS:
        return Promote()
    return Pause(AWAITING_PROMOTION)


def _baked(canary: Canary) -> bool:
    return canary.baked_s >= canary.policy.bake_s


def _last_reason(canary: Canary, verdict: str) -> str:
    reasons = (each.reason for each in reversed(canary.measurements) if each.verdict == verdict)
    return next(reasons, "its checks failed")
