"""What a canary is asked to prove, and how far it has come: the values that judge, runner, targets and verbs share.

All of it is kept as JSON by the target, so that whoever takes over goes on where another left off.
"""

from typing import Final, Literal

from msgspec import Struct

Verdict = Literal["Successful", "Failed", "Inconclusive", "Error"]
Phase = Literal["Progressing", "Paused", "Promoted", "RolledBack", "Superseded"]
Wish = Literal["", "pause", "resume", "promote", "promote-full", "abort"]
OnNoData = Literal["probe", "pause", "fail", "pass"]
OnInconclusive = Literal["pause", "fail", "pass"]

ENDED: Final = frozenset({"Promoted", "RolledBack", "Superseded"})
KEPT_MEASUREMENTS: Final = 120
KEPT_CANARIES: Final = 10


class Check(Struct, frozen=True, omit_defaults=True):
    """A figure with its bounds: of METRICS (canary.checks) by its name, or of a query of the user's own.

    Milliseconds where the name ends in `_ms`; rates are shares of 1.
    """

    name: str
    query: str = ""
    maximum: float | None = None
    minimum: float | None = None


class Policy(Struct, frozen=True, omit_defaults=True):
    steps: tuple[int, ...] = (5, 25, 50, 100)
    bake_s: float = 120.0  # at each step, at least
    interval_s: float = 15.0  # between measurements
    checks: tuple[Check, ...] = ()
    compare: Literal["", "baseline"] = ""
    ratio: float = 1.2  # how much worse than the baseline is worse
    min_requests: int = 50  # of the canary, before a measurement counts
    failure_limit: int = 2  # failed measurements, and none between them that succeeded, that end it
    on_no_data: OnNoData = "probe"
    example: str = ""  # the body that probes send, as JSON; without it, zeros by what the model says that it takes
    on_inconclusive: OnInconclusive = "pause"
    inconclusive_limit: int = 120  # such measurements in a row, after the bake, before on_inconclusive holds
    deadline_s: float = 3600.0
    auto_promote: bool = True
    dry_run_checks: bool = False  # measured and shown, but nothing waits for them or is rolled back by them
    keep_stable_s: float = 30.0  # the stable side keeps its replicas for so long after the promotion


class Measurement(Struct, frozen=True, omit_defaults=True):
    check: str
    at: str  # UTC, RFC 3339
    verdict: Verdict
    value: float | None = None
    baseline: float | None = None
    requests: int = 0
    query: str = ""  # as it was asked
    reason: str = ""  # one sentence when it is not Successful
    look: int = 1  # how often the data had been looked at: each look spends of the rate of false rollbacks
    bound: float | None = None  # what the value is held against; of a comparison, what the baseline allows
    low: float | None = None  # with 95 % confidence the value is between these two
    high: float | None = None


class Counts(Struct, frozen=True, array_like=True):
    """What one side did within some time: `timed` of its requests are in the histogram, `below` its edges."""

    requests: float
    errors: float
    seconds: float
    observed_s: float
    timed: float
    below: tuple[tuple[float, float], ...]


class Stratum(Struct, frozen=True, array_like=True):
    """Both sides, while their shares stayed what they were."""

    canary: Counts
    baseline: Counts


class Canary(Struct, frozen=True, omit_defaults=True):
    """One canary of one service. `wish` is what somebody asked for and the runner has not done yet."""

    policy: Policy
    revision: str
    stable: str
    generation: int  # of the newest release that the runner knows to be this canary's
    stable_generation: int
    started_at: str
    phase: Phase = "Progressing"
    step: int = 0  # index into policy.steps
    weight: int = 0
    step_at: str = ""  # when the canary had the weight of the step and was ready
    baked_s: float = 0.0  # of the step, as far as a clock that only goes forward has counted
    elapsed_s: float = 0.0  # since the start, counted likewise, without pauses
    observed_s: float = 0.0  # since it first had a weight, pauses included: how far measurements look back
    weighed_s: float = 0.0  # of them, those before it got the weight that it has
    weighed_looks: int = 0  # measurements until then
    stratum: Stratum | None = None  # what the last measurement compared at this share
    strata: tuple[Stratum, ...] = ()  # at the shares before it
    failures: int = 0  # measurements that failed since the last that succeeded
    inconclusive: int = 0  # in a row, at this step
    errors: int = 0  # in a row that could not be made
    probes: int = 0  # rounds of synthetic requests at this step
    wish: Wish = ""
    reason: str = ""
    measurements: tuple[Measurement, ...] = ()
    ended_at: str = ""
    measured_at: str = ""
    holder: str = ""  # who runs it
    renewed_at: str = ""  # when the holder last said so


class Ledger(Struct, frozen=True, omit_defaults=True):
    """What a target keeps of a service's canaries: the one that runs or ran last, and earlier ones, newest first."""

    current: Canary | None = None
    past: tuple[Canary, ...] = ()
