"""Input and output of scaling decisions: rules of a workload, observations, decision.

All are immutable values; `now` is monotonic seconds and always an argument. The caller stores `Decision.memory` and
passes it to the next decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Any


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
    source: Literal["prometheus", "requests", "cpu", "memory"]
    kind: Literal["Value", "AverageValue", "Utilization"]
    target: float
    activation: float = 0.0
    query: str = ""
    server: str = ""
    ignore_null: bool = True


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
    memory: Any = None
    rule: str = ""  # metric label: stable, panic, zero, activation, fallback, cooldown, …
