"""Scaling units: a revision of a Knative Service, or a Deployment with all its templates.

A unit holds the state that its autoscaler needs between two decisions, and the last decision.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pilotlight.targets.local.model import RevisionSpec
from pilotlight.targets.local.scaling.bounds import with_bounds
from pilotlight.targets.local.scaling.decide import decide
from pilotlight.targets.local.scaling.model import Decision, Fixed, Hpa, Kpa, Observed, Scaling
from pilotlight.targets.local.traffic_log import TrafficLog

Json = Any
UNREACHABLE: Final = "0: no traffic and no tag leads to it"


@dataclass(slots=True)
class Revision:
    """Run-time state of one revision. Times are monotonic."""

    spec: RevisionSpec
    created_at: float
    ready_once: bool = False  # a replica has been ready since the revision last received traffic
    failure: str = ""  # why its last start failed; empty once it is ready
    failures: int = 0  # in a row
    load_failed: bool = False  # the predictor reported that the model cannot be loaded
    deadline_exceeded: bool = False  # the progress deadline passed without a ready replica
    last_start: float = 0.0
    next_start: float = 0.0  # earliest, after the backoff of a crash
    cold_start: Mapping[str, float] = field(default_factory=dict)  # seconds by phase of its latest start

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(slots=True)
class Unit:
    name: str
    scaling: Scaling
    created_at: float
    cpu_request: float = 0.0  # cores; the base of CPU utilization
    traffic: TrafficLog = field(default_factory=TrafficLog)
    desired: int = 0
    decision: Decision | None = None
    decided_at: str = ""
    decisions: Counter[str] = field(default_factory=Counter)  # that changed the count, by rule
    metrics: dict[str, float | None] = field(default_factory=dict)

    def bounded(self, override: Mapping[str, Json]) -> Scaling:
        least, most = override.get("minReplicas"), override.get("maxReplicas")
        return with_bounds(self.scaling, least, most) if override else self.scaling

    def is_preemptible(self, override: Mapping[str, Json]) -> bool:
        """Whether it may lose its GPUs: no request by the gateway's last report, and a lower bound of zero."""
        return not (self.traffic.waiting or self.traffic.in_flight or min_replicas(self.bounded(override)))

    def set_unreachable(self) -> None:
        """Scale to zero and drop the autoscaler's state: no route leads to the unit."""
        if self.desired or self.decision is None:
            self.desired, self.decision = 0, Decision(0, UNREACHABLE, rule="unreachable")

    def decide(self, observed: Observed, override: Mapping[str, Json], now: float) -> Decision:
        memory = self.decision.memory if self.decision else None
        return decide(self.bounded(override), observed, memory, now)


def activation_replicas(scaling: Scaling) -> int:
    """Return the replicas that the first waiting request starts; a paused ScaledObject keeps its count."""
    if isinstance(scaling, Kpa):
        return max(1, scaling.activation_scale, scaling.min_scale)
    if isinstance(scaling, Hpa) and (scaling.paused or scaling.paused_replicas is not None):
        return scaling.paused_replicas or 0
    return max(1, scaling.min_replicas if isinstance(scaling, Hpa) else scaling.replicas)


def initial_replicas(scaling: Scaling) -> int:
    """Return the replicas that a revision starts with, before any load is measured."""
    if isinstance(scaling, Fixed):
        return scaling.replicas
    least = scaling.min_scale if isinstance(scaling, Kpa) else scaling.min_replicas
    return max(1, least, scaling.initial_scale if isinstance(scaling, Kpa) else 0)


def min_replicas(scaling: Scaling) -> int:
    if isinstance(scaling, Fixed):
        return scaling.replicas
    return scaling.min_scale if isinstance(scaling, Kpa) else scaling.min_replicas
