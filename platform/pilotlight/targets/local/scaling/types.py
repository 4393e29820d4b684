"""Input and output of scaling decisions: rules of a workload, observations with windowed averages of load, decision.

All are immutable values; `now` is monotonic seconds and always an argument.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pilotlight.k8s.cron import Schedule

DIGITS: Final = 6
REPORT_DELAY_S: Final = 2  # a second is reported within this time after its end
# As Knative: a window's seconds make up this share of the weighted average; the decay is at least 0.2.
WEIGHT: Final = 0.9999
MIN_DECAY: Final = 0.2


@dataclass(frozen=True, slots=True)
class Kpa:
    """Settings of Knative's pod autoscaler, from a revision's annotations; the defaults are Knative's."""

    metric: Literal["concurrency", "rps"] = "concurrency"
    target: float = 100.0
    utilization: float = 0.7
    min_scale: int = 0
    max_scale: int = 0  # 0: no limit
    initial_scale: int = 1
    activation_scale: int = 1
    window_s: float = 60.0
    panic_window_percent: float = 10.0
    panic_threshold_percent: float = 200.0
    burst_capacity: float = 211.0
    scale_down_delay_s: float = 0.0
    retention_s: float = 0.0
    grace_s: float = 30.0
    max_up_rate: float = 1000.0
    max_down_rate: float = 2.0
    algorithm: Literal["linear", "weightedExponential"] = "linear"
    container_concurrency: int = 0
    progress_s: float = 600.0  # progress deadline; activation gets 30 s more


@dataclass(frozen=True, slots=True)
class Policy:
    type: Literal["Pods", "Percent"]
    value: int
    period_s: float


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """HPAScalingRules: one direction of an HPA's behavior."""

    policies: tuple[Policy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"
    window_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One trigger or HPA metric with its target.

    Its value in `Observed.metrics`: for prometheus the query result; for cpu and memory the mean of the ready replicas,
    in percent of their requests (Utilization) or in cores and bytes (AverageValue). `requests` comes from the samples.
    """

    name: str
    source: Literal["prometheus", "requests", "cpu", "memory", "cron"]
    kind: Literal["Value", "AverageValue", "Utilization"]
    target: float
    activation: float = 0.0
    query: str = ""
    ignore_null: bool = True
    schedule: Schedule | None = None  # of cron; the value is its number of replicas, outside of it 0


@dataclass(frozen=True, slots=True)
class Fallback:
    failure_threshold: int
    replicas: int
    behavior: str = "static"


@dataclass(frozen=True, slots=True)
class Hpa:
    """HorizontalPodAutoscaler, or a KEDA ScaledObject (`keda`), which adds activation and scale to zero."""

    min_replicas: int
    max_replicas: int
    metrics: tuple[Metric, ...]
    up: ScalingRules
    down: ScalingRules
    tolerance: float = 0.1
    keda: bool = False
    polling_s: float = 30.0
    cooldown_s: float = 300.0
    initial_cooldown_s: float = 0.0
    idle_replicas: int | None = None
    fallback: Fallback | None = None
    paused: bool = False
    paused_replicas: int | None = None
    formula: str = ""  # scalingModifiers
    formula_target: float = 0.0
    formula_activation: float = 0.0
    formula_kind: Literal["Value", "AverageValue"] = "AverageValue"
    paused_in: bool = False  # no scale-down
    paused_out: bool = False  # no scale-up
    force_activation: bool = False


@dataclass(frozen=True, slots=True)
class Fixed:
    replicas: int


Scaling = Kpa | Hpa | Fixed
# What determined a decision; label of the decisions metric.
Rule = Literal[
    "stable", "panic", "delay", "initial", "minimum", "maximum", "activation", "deadline", "window", "grace",
    "retention", "zero", "metrics", "policy", "bound", "missing", "idle", "cooldown", "fallback", "failed", "paused",
    "fixed", "yield", "unreachable",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """Load of a revision at the gateway in the second that ended at `at`."""

    at: float
    concurrency: float
    requests: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Observations for one decision. `replicas` excludes draining ones; `ready` of them are ready."""

    replicas: int
    ready: int
    samples: Sequence[Sample] = ()  # oldest first
    waiting: int = 0
    in_flight: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)  # by Metric.name; None: failed
    created_at: float = 0.0  # of the revision or its ScaledObject
    was_ready: bool = True  # a replica of this revision has been ready
    reachable: bool = True  # by traffic or tag; Knative lets an unreachable revision scale to zero


@dataclass(frozen=True, slots=True)
class Decision:
    """`desired` replicas and the reason for users: `4: 37.2 concurrent over 60 s / 10 each`."""

    desired: int
    reason: str
    state: Any = None
    rule: Rule | Literal[""] = ""


def buckets(observed: Observed, metric: str, window_s: float, now: float) -> dict[int, float]:
    """Return the load by second, back to the first gap as long as the window, or one second more than the window.

    The gateway does not report idle backends, so a second without a sample counts as zero, except the last two, which
    may still be on their way.
    """
    load: dict[int, float] = {}
    concurrency = metric != "rps"
    pending = observed.waiting + observed.in_flight if concurrency else observed.waiting
    last = present = math.floor(now)
    # Requests that arrived after the newest sample: count them now, or a wake-up would look idle.
    if pending and observed.samples and now - observed.samples[-1].at > REPORT_DELAY_S:
        load[last] = float(pending)
    for sample in reversed(observed.samples):
        at = math.floor(sample.at)
        if last - at >= window_s:
            break
        if present - at > window_s:  # one second before the window shows that all of it is known
            load.setdefault(at, 0.0)
            break
        value = sample.concurrency if concurrency else sample.requests
        load[at] = load[at] + value if at in load else value
        last = at
    return load or ({last: float(pending)} if pending else {})


def average(load: dict[int, float], began: float | None, window_s: float, now: float, weighted: bool) -> float:
    """Return the average load over the window or its known part, as Knative's metrics; `load` is newest first.

    `began`: since when the revision has been active, so that seconds without a sample count as zero load.
    """
    present = math.floor(now)
    size = math.ceil(window_s)
    oldest = present - size  # newest second outside the window
    inside: dict[int, float] = {}
    for at, value in load.items():
        if at <= oldest:
            break
        inside[at] = value
    if not inside:
        return 0.0
    if weighted:
        decay = max(1 - math.pow(1 - WEIGHT, 1 / size), MIN_DECAY)
        return sum(value * decay * math.pow(1 - decay, present - at) for at, value in inside.items())
    newest, earliest = next(iter(inside)), next(reversed(load))
    # A newest bucket within the report delay ends the range: later seconds may only not have been reported yet.
    end = newest if present - newest <= REPORT_DELAY_S else present - 1
    first = earliest if began is None else min(earliest, math.floor(began))
    seconds = min(end - first + 1, size - (present - end))
    return round(sum(inside.values()) / max(seconds, 1), DIGITS)
