"""State of canaries, shared by analysis, runner, targets and CLI.

Targets store it as JSON, so that another runner continues where one stopped: field names are the format.
"""

from typing import Final, Literal

from msgspec import Struct, field

from pilotlight.spec.canary_policy import CanaryPolicy

Verdict = Literal["Successful", "Failed", "Inconclusive", "Error"]
Phase = Literal["Progressing", "Paused", "Promoted", "RolledBack", "Superseded"]
CanaryCommand = Literal["", "pause", "resume", "promote", "promote-full", "abort"]

ENDED: Final = frozenset({"Promoted", "RolledBack", "Superseded"})
MAX_MEASUREMENTS: Final = 120
MAX_PAST_CANARIES: Final = 10


class Measurement(Struct, frozen=True, omit_defaults=True):
    """Result of one check at one look."""

    check: str
    at: str  # UTC, RFC 3339
    verdict: Verdict
    value: float | None = None
    baseline: float | None = None
    requests: int = 0
    query: str = ""  # PromQL
    reason: str = ""  # one sentence unless Successful
    look: int = 1  # number of the look (interim analysis): each spends a part of the false-positive budget
    bound: float | None = None  # limit of the value; of a comparison, ratio times the baseline
    low: float | None = None  # 95 % confidence interval
    high: float | None = None


class StoredCounts(Struct, frozen=True, array_like=True):
    """Counts of one variant within a time: `timed` requests in the histogram, `below` its cumulative buckets."""

    requests: float
    errors: float
    seconds: float
    observed_s: float
    timed: float
    below: tuple[tuple[float, float], ...]


class Stratum(Struct, frozen=True, array_like=True):
    """Counts of both variants while the traffic split was constant."""

    canary: StoredCounts
    baseline: StoredCounts


class Canary(Struct, frozen=True, omit_defaults=True):
    """One canary of one service. `command` is a requested command that the runner has not executed yet."""

    policy: CanaryPolicy
    revision: str
    stable: str
    generation: int  # of the newest known release of this canary
    stable_generation: int
    started_at: str
    phase: Phase = "Progressing"
    step: int = 0  # index into policy.steps
    weight: int = 0
    step_at: str = ""  # when the canary got the weight of the step
    baked_s: float = 0.0  # time at this step while ready, by a monotonic clock
    elapsed_s: float = 0.0  # since the start without pauses, by a monotonic clock
    observed_s: float = 0.0  # since its first weight, pauses included: the window of measurements
    weighed_s: float = 0.0  # observed_s at the time of the last weight change
    weighed_looks: int = 0  # looks until the last weight change
    stratum: Stratum | None = None  # of the last measurement at this weight
    strata: tuple[Stratum, ...] = ()  # of earlier weights
    failures: int = 0  # failed measurements since the last successful one
    inconclusive: int = 0  # consecutive, at this step
    errors: int = 0  # consecutive measurement errors
    probes: int = 0  # rounds of probes at this step
    command: CanaryCommand = field(name="wish", default="")
    reason: str = ""
    measurements: tuple[Measurement, ...] = ()
    ended_at: str = ""
    holder: str = ""  # lease: identity of the runner
    renewed_at: str = ""  # lease: last renewal


class CanaryHistory(Struct, frozen=True, omit_defaults=True):
    """Canaries of a service as targets store them: the current or last one, and earlier ones, newest first."""

    current: Canary | None = None
    past: tuple[Canary, ...] = ()
