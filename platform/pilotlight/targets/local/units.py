"""What is scaled as one: a revision of a Knative Service, or all of a Deployment whichever template its replicas have.

A unit remembers what its autoscaler needs between two questions, and what was answered last.
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
    """One revision at run time. Times are monotonic."""

    spec: RevisionSpec
    created_at: float
    ready_once: bool = False  # it has answered since it was last needed; what nobody needs must answer anew
    failure: str = ""  # why its last start failed; empty once it is ready
    failures: int = 0  # in a row
    refused: bool = False  # its model said itself that it cannot be loaded
    given_up: bool = False  # the progress deadline passed without a replica that answered
    last_start: float = 0.0
    next_start: float = 0.0  # not before: the pause after a crash
    cold_start: Mapping[str, float] = field(default_factory=dict)  # seconds by phase of its latest start

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(slots=True)
class Unit:
    name: str
    scaling: Scaling
    created_at: float
    cpu_request: float = 0.0  # cores, that the use of the CPU is a share of
    traffic: TrafficLog = field(default_factory=TrafficLog)
    desired: int = 0
    decision: Decision | None = None
    decided_at: str = ""
    decisions: Counter[str] = field(default_factory=Counter)  # those that changed the count, by their rule
    metrics: dict[str, float | None] = field(default_factory=dict)

    def bounded(self, override: Mapping[str, Json]) -> Scaling:
        least, most = override.get("minReplicas"), override.get("maxReplicas")
        return with_bounds(self.scaling, least, most) if override else self.scaling

    def may_yield(self, override: Mapping[str, Json]) -> bool:
        """Nobody asks, as far as the gateway has told, and it may fall to zero."""
        return not (self.traffic.waiting or self.traffic.in_flight or least(self.bounded(override)))

    def rest(self) -> None:
        """No request can come to it: what its autoscaler remembers is of no use any more."""
        if self.desired or self.decision is None:
            self.desired, self.decision = 0, Decision(0, UNREACHABLE, rule="unreachable")

    def decide(self, observed: Observed, override: Mapping[str, Json], now: float) -> Decision:
        memory = self.decision.memory if self.decision else None
        return decide(self.bounded(override), observed, memory, now)


def activation(scaling: Scaling) -> int:
    """How many replicas the first waiting request brings; none where somebody has paused scaling."""
    if isinstance(scaling, Kpa):
        return max(1, scaling.activation_scale, scaling.min_scale)
    if isinstance(scaling, Hpa) and (scaling.paused or scaling.paused_replicas is not None):
        return scaling.paused_replicas or 0
    return max(1, scaling.min_replicas if isinstance(scaling, Hpa) else scaling.replicas)


def initial(scaling: Scaling) -> int:
    """How many replicas a revision starts with, before anything is known about its load."""
    if isinstance(scaling, Fixed):
        return scaling.replicas
    least = scaling.min_scale if isinstance(scaling, Kpa) else scaling.min_replicas
    return max(1, least, scaling.initial_scale if isinstance(scaling, Kpa) else 0)


def least(scaling: Scaling) -> int:
    if isinstance(scaling, Fixed):
        return scaling.replicas
    return scaling.min_scale if isinstance(scaling, Kpa) else scaling.min_replicas
