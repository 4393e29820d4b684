"""What happens to a canary next: decided from what is kept, what was judged and what runs. Pure: after judge.

The runner does, in this order, each tick:

    canary = passed(canary, seconds since the last tick, facts)
    canary = measured(canary, judgement)            when a measurement was due
    move = next_move(canary, judgement, facts)
    …makes the move true at the target…
    canary = applied(canary, move, at)              and keeps it (moves.py)
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from pilotlight.canary import strata
from pilotlight.canary.judge import Judgement
from pilotlight.canary.model import ENDED, KEPT_MEASUREMENTS, Canary
from pilotlight.canary.moves import (
    PROMOTING,
    Facts,
    Finish,
    Move,
    Pause,
    Probe,
    Promote,
    Resume,
    RollBack,
    SetWeight,
    Wait,
)

ERROR_LIMIT: Final = 4  # measurements in a row that could not be made, before a person is asked
ASKED_LOOKS: Final = 8  # measurements without another request, after which nobody asks any more
BY_HAND: Final = "by hand"
ASKS_PROMOTION: Final = "every check passed; platformctl canary promote gives it all requests"
LEAST_COMPARED_S: Final = 8.0  # within less nothing need have been scraped, which would look as if nobody asked
PROBE_LOOKS: Final = 8  # measurements after probes, within which these must have been scraped


Rule = Callable[[Canary, Judgement | None, Facts], Move | None]


def passed(canary: Canary, seconds: float, facts: Facts) -> Canary:
    """With the time since the last tick; a clock that was set back adds nothing. Only a ready canary bakes."""
    if canary.phase in ENDED or not seconds > 0:
        return canary
    paused, served = canary.phase == "Paused", canary.weight > 0
    return replace(
        canary,
        elapsed_s=canary.elapsed_s + (0.0 if paused else seconds),
        observed_s=canary.observed_s + (seconds if served else 0.0),
        baked_s=canary.baked_s + (seconds if served and facts.ready and not paused else 0.0),
    )


def comparable_s(canary: Canary) -> float:
    """How far back both sides may be compared: only while their shares were what they are. Of two sides that slow down
    together the one that had its requests later looks worse, so no time with other shares may be among it, nor what was
    scraped late: the first interval after a change is left out."""
    settling = canary.policy.interval_s if canary.weighed_s else 0.0  # the first share follows upon no other
    return max(canary.observed_s - canary.weighed_s - settling, 0.0)


def measured(canary: Canary, judgement: Judgement) -> Canary:
    """With one more look at the data. Only success takes a failure back: that nothing could be told proves nothing."""
    verdict = judgement.verdict
    failures = canary.failures + 1 if verdict == "Failed" else canary.failures
    return replace(
        canary,
        measurements=(*canary.measurements, *judgement.measurements)[-KEPT_MEASUREMENTS:],
        failures=0 if verdict == "Successful" else failures,
        inconclusive=canary.inconclusive + 1 if verdict == "Inconclusive" and _baked(canary) else 0,
        errors=canary.errors + 1 if verdict == "Error" else 0,
        stratum=strata.kept(judgement.pair) if judgement.pair is not None else canary.stratum,
    )


def next_move(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move:
    """The first rule that has a say. `judgement` is the one of this tick, None where no measurement was due."""
    if canary.phase in ENDED:
        return Wait(canary.reason)
    moves = (rule(canary, judgement, facts) for rule in RULES)
    return next((move for move in moves if move is not None), Wait())


def _ended_by_others(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    if facts.newer:
        return Finish("Superseded", "a newer release was deployed")
    return RollBack("aborted by hand") if canary.wish == "abort" else None


def _failed(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    """While it is paused too: those who wait for a person must not get errors meanwhile."""
    if facts.failed:
        return RollBack(f"{canary.revision} does not start: {facts.failed}")
    if canary.failures >= max(canary.policy.failure_limit, 1):
        return RollBack(_last_reason(canary, "Failed"))
    late = canary.elapsed_s > canary.policy.deadline_s and canary.weight < 100 and canary.phase != "Paused"
    return RollBack(f"not through its steps within the deadline of {canary.policy.deadline_s:g} s") if late else None


def _paused_by_hand(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    if canary.wish == "pause":
        return Wait(canary.reason) if canary.phase == "Paused" else Pause(BY_HAND)
    return None


def _not_ready(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    return None if facts.ready else Wait(f"{canary.revision} is not ready")


def _asked_for(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    if canary.wish == "promote-full":
        return _promoted(canary) if canary.weight >= 100 else Promote()
    if canary.wish == "promote":
        return _promoted(canary) if canary.weight >= 100 else _onwards(canary)
    return Resume() if canary.wish == "resume" and canary.phase == "Paused" else None


def _stays_paused(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    return Wait(canary.reason) if canary.phase == "Paused" else None


def _promoted(canary: Canary) -> Move:
    left = canary.policy.keep_stable_s - canary.baked_s
    return Wait(f"{canary.stable} keeps its replicas for another {left:.0f} s") if left > 0 else Finish("Promoted")


def _last_weight(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    return _promoted(canary) if canary.weight >= 100 else None


def _weight_of_step(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    wanted = canary.policy.steps[canary.step]
    if canary.weight == wanted:
        return None
    return SetWeight(wanted) if wanted < 100 else _gate(canary)


def _unmeasured(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    if canary.errors >= ERROR_LIMIT:
        return Pause(f"{canary.errors} measurements in a row could not be made: {_last_reason(canary, 'Error')}")
    return None if _baked(canary) and judgement is not None else Wait(_baking(canary))


def _too_few(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    """No data is neither a failure nor a success: what it is, the policy says. While requests come, they are waited
    for: probes among them would make a canary look better, or worse, than those who ask find it."""
    if judgement is None or judgement.verdict != "Inconclusive":
        return None
    lacking, of_baseline = judgement.lacking, judgement.lacking_baseline
    if not lacking and not of_baseline:
        return None
    if _still_asked(canary) and canary.inconclusive < canary.policy.inconclusive_limit:
        return Wait(judgement.reason)
    if canary.policy.compare and comparable_s(canary) < LEAST_COMPARED_S:
        return Wait(judgement.reason)  # what the baseline lacks is not known yet
    told = f"too few requests after {canary.baked_s:.0f} s: {judgement.reason}"
    if canary.policy.on_no_data == "pass":
        return _onwards(canary)
    if canary.policy.on_no_data == "fail":
        return RollBack(told)
    if canary.policy.on_no_data == "probe" and not canary.probes:
        return Probe(lacking, of_baseline)
    waits = canary.policy.on_no_data == "probe" and canary.inconclusive < PROBE_LOOKS
    return Wait("probes were sent and are not in the metrics yet") if waits else Pause(told)


def _still_asked(canary: Canary) -> bool:
    """Whether requests have come since some looks ago."""
    counted: dict[int, int] = {}
    for each in canary.measurements:
        counted[each.look] = max(each.requests, counted.get(each.look, 0))
    looks = sorted(counted)[-ASKED_LOOKS - 1 :]
    lately = [counted[look] for look in looks] if len(looks) > ASKED_LOOKS else [0, *(counted[look] for look in looks)]
    return any(later > earlier for earlier, later in pairwise(lately))


def _unclear(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    if judgement is None or judgement.verdict != "Inconclusive":
        return None
    if canary.inconclusive < canary.policy.inconclusive_limit:
        return Wait(judgement.reason)
    if canary.policy.on_inconclusive == "pass":
        return _onwards(canary)
    return (RollBack if canary.policy.on_inconclusive == "fail" else Pause)(judgement.reason)


def _proved(canary: Canary, judgement: Judgement | None, facts: Facts) -> Move | None:
    if judgement is None or judgement.verdict != "Successful":
        return Wait(judgement.reason if judgement is not None else "")
    return _onwards(canary)


# The first that has a say decides. Whatever ends a canary comes before whatever moves it on.
RULES: Final[tuple[Rule, ...]] = (
    _ended_by_others, _failed, _paused_by_hand, _not_ready, _asked_for, _stays_paused, _last_weight, _weight_of_step,
    _unmeasured, _too_few, _unclear, _proved,
)  # fmt: skip


def _onwards(canary: Canary) -> Move:
    """The next step's weight; the last step is the promotion."""
    following = next((step for step in canary.policy.steps if step > canary.weight), 100)
    return SetWeight(following) if following < 100 else _gate(canary)


def _gate(canary: Canary) -> Move:
    """Before the promotion, which with --manual a person asks for."""
    if canary.policy.auto_promote or canary.wish in PROMOTING:
        return Promote()
    return Pause(ASKS_PROMOTION)


def _baked(canary: Canary) -> bool:
    return canary.baked_s >= canary.policy.bake_s


def _baking(canary: Canary) -> str:
    left = canary.policy.bake_s - canary.baked_s
    return f"at {canary.weight} % for another {left:.0f} s at least" if left > 0 else "waits for the next measurement"


def _last_reason(canary: Canary, verdict: str) -> str:
    found = (each.reason for each in reversed(canary.measurements) if each.verdict == verdict)
    return next(found, "its checks failed")
