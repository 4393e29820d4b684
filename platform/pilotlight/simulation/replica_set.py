"""Replicas of one workload on virtual time: what the autoscaler decides, what starts, serves, drains and holds GPUs.

The decisions are those of the embedded platform: `decide`, its samples of traffic, GPU admission, the order of removal.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from pilotlight.simulation.result import LatencyHistogram, Simulation
from pilotlight.simulation.scenario import Scenario
from pilotlight.simulation.service_times import ColdStart, Profile, Start
from pilotlight.simulation.stations import SharedStation
from pilotlight.simulation.virtual_clock import VirtualClock
from pilotlight.targets.local.control.service_state import TrafficLog, activation_replicas, min_replicas
from pilotlight.targets.local.scaling import kpa
from pilotlight.targets.local.scaling.decision import KpaDecisionState, decide, select_for_removal
from pilotlight.targets.local.scaling.gpu_admission import Gpu, Holder, Waiter, admit
from pilotlight.targets.local.scaling.keda import KedaState, scheduled
from pilotlight.targets.local.scaling.types import Decision, Hpa, Kpa, Observed

DEFAULT_COLD_START_S: Final = 5.0
LONG_AGO: Final = -1e6


@dataclass(eq=False)
class SimulatedReplica:
    id: str
    started_at: float
    state: str = "pending"  # pending, starting, ready, draining, exited
    gpus: tuple[int | str, ...] = ()
    admitted_at: float = math.inf
    loading_s: float = 0.0  # of its start beside the CPU time
    exists_until: float = 0.0  # at least, once it drains
    in_flight: int = 0


@dataclass
class Usage:
    """Step series and integrals up to the end of the trace."""

    end: float
    replicas: list[tuple[float, int]] = field(default_factory=list)
    ready: list[tuple[float, int]] = field(default_factory=list)
    replica_seconds: float = 0.0
    gpu_seconds: float = 0.0
    starts: Counter[str] = field(default_factory=Counter)

    def step(self, series: list[tuple[float, int]], now: float, count: int) -> None:
        if now > self.end or (series and series[-1][1] == count):
            return
        if series and series[-1][0] == now:
            series.pop()
        series.append((now, count))


class ReplicaSet:
    """`on_ready` and `on_retire` tell the queue in front which replicas serve.

    `metrics` returns the values of triggers that do not come from the gateway's own samples.
    """

    def __init__(
        self,
        scenario: Scenario,
        profile: Profile,
        end: float,
        rng: np.random.Generator,
        clock: VirtualClock,
        on_ready: Callable[[SimulatedReplica, float], None],
        on_retire: Callable[[SimulatedReplica, float], None],
        metrics: Callable[[float, int], Mapping[str, float | None]] = lambda now, ready: {},
    ) -> None:
        self.scenario, self._profile, self._rng, self._clock = scenario, profile, rng, clock
        self._on_ready, self._on_retire, self._metrics = on_ready, on_retire, metrics
        self.traffic = TrafficLog()
        self.usage = Usage(end)
        self.replicas: list[SimulatedReplica] = []  # that have not exited
        self.desired = 0
        self.parked = False
        self.decisions: list[tuple[float, Decision]] = []
        self._state: object = _initial_state(scenario)
        self._always = bool(scheduled(scenario.scaling))
        # A cluster's autoscaler has a clock of its own; on one machine it ticks with the gateway's reports.
        self._phase_s = rng.uniform(0, scenario.tick_s) if scenario.tick_s > 1 else 0.0
        self._decides_at = self._phase_s
        self._number = 0
        self._gpus = [Gpu(index) for index in range(scenario.devices or 0)]
        self._cpu_s = self._cold_start(scenario.start).cpu_s if scenario.cores else 0.0
        self._cores = SharedStation(clock, self._loading, {scenario.cores or 1: (self._cpu_s,)}, rng)

    @property
    def active(self) -> list[SimulatedReplica]:
        return [each for each in self.replicas if each.state in ("pending", "starting", "ready")]

    def begin(self, now: float) -> None:
        """Begin with the lower bound of replicas ready, or at zero."""
        self.desired = min_replicas(self.scenario.scaling)
        for _ in range(self.desired):
            replica = self._new(now)
            self._admit(now)
            if replica.state != "pending":
                self._ready(replica, now)
        self._record(now)

    def wake(self, now: float, waiting: int) -> None:
        """Start the first replicas for a waiting request, without waiting for the next decision."""
        self.traffic.wait(max(self.traffic.waiting, waiting), now)
        count = activation_replicas(self.scenario.scaling)
        if self.desired < count:
            self._decides_at = self._next_decision(now)
            self._apply(Decision(count, f"{count}: a request is waiting", self._state, "activation"), now)

    def tick(self, now: float) -> bool:
        """End a second of traffic and decide if it is time; return whether another tick is needed."""
        self.traffic.tick(now)
        return self.decide(now)

    def decide(self, now: float) -> bool:
        active = self.active
        if self.scenario.external_push:
            self._prolong_cooldown(now)
        if not (active or self.desired or self.traffic.waiting or self._always or min_replicas(self.scenario.scaling)):
            return bool(self.replicas)
        if now >= self._decides_at - 1e-9:
            self._decides_at = self._next_decision(now)
            ready = sum(each.state == "ready" for each in active)
            observed = Observed(
                len(active), ready, self.traffic.samples, self.traffic.waiting, self.traffic.in_flight,
                {**self._metrics(now, ready), **self._requests()}, LONG_AGO,
            )  # fmt: skip
            self._apply(decide(self.scenario.scaling, observed, self._state, now), now)
        return True

    def _next_decision(self, now: float) -> float:
        interval = self.scenario.tick_s
        return self._phase_s + interval * (math.floor((now - self._phase_s) / interval + 1e-9) + 1)

    def _prolong_cooldown(self, now: float) -> None:
        """Prolong KEDA's cooldown, as the gateway's stream does, while there are requests or a replica starts."""
        busy = now - self.traffic.last_used <= 1.0
        if isinstance(self._state, KedaState) and (busy or any(each.state == "starting" for each in self.replicas)):
            self._state = replace(self._state, last_active=now)

    def _requests(self) -> dict[str, float]:
        """Return the values of triggers that read the requests of the moment."""
        scaling = self.scenario.scaling
        if not (self.scenario.external_push and isinstance(scaling, Hpa)):
            return {}
        count = float(self.traffic.waiting + self.traffic.in_flight)
        return {metric.name: count for metric in scaling.metrics if metric.source == "requests"}

    def finished(self, now: float, replica: SimulatedReplica) -> None:
        """End a draining replica that has no requests left, once it may end."""
        if replica.state == "draining" and not replica.in_flight:
            if now >= replica.exists_until:
                self._end(replica, now)
            else:
                self._clock.at(replica.exists_until, self.finished, replica)

    def close(self, now: float) -> None:
        """Count what still exists at the end of the trace."""
        for replica in self.replicas:
            self._count(replica, now)
        self.replicas = []

    def _apply(self, decision: Decision, now: float) -> None:
        self._state = decision.state
        if decision.desired != self.desired:
            self.desired = decision.desired
            self.decisions.append((now, decision))
        self._scale(now)

    def _scale(self, now: float) -> None:
        active = self.active
        if len(active) == self.desired:
            return
        for replica in select_for_removal(active, len(active) - self.desired):
            self._retire(replica, now)
        for _ in range(self.desired - len(active)):
            self._new(now)
        self._admit(now)
        self._record(now)

    def _new(self, now: float) -> SimulatedReplica:
        self._number += 1
        replica = SimulatedReplica(str(self._number), now)
        self.replicas.append(replica)
        return replica

    def _admit(self, now: float) -> None:
        """Start pending replicas that get their GPUs, by the platform's own admission."""
        pending = [each for each in self.replicas if each.state == "pending"]
        number = self.scenario.gpus
        if not pending:
            return
        if self.scenario.devices is None or not number:
            admitted: dict[str, tuple[int | str, ...]] = {each.id: () for each in pending}
        else:
            service = self.scenario.name
            holders = [
                Holder(each.id, service, each.gpus, leaving=each.state == "draining")
                for each in self.replicas
                if each.gpus
            ]
            waiting = [Waiter(each.id, service, number, since=each.started_at) for each in pending]
            admitted = admit(now, self._gpus, holders, waiting).admitted
        for replica in pending:
            if replica.id in admitted:
                replica.gpus = admitted[replica.id]
                replica.state, replica.admitted_at = "starting", now
                self._start(replica, now)

    def _start(self, replica: SimulatedReplica, now: float) -> None:
        if now <= 0 and len(self.usage.replicas) == 0:  # there before the trace begins
            return
        kind: Start = "parked" if self.parked else self.scenario.start
        self.parked = False
        self.usage.starts[kind] += 1
        totals = self._cold_start(kind).totals
        total_s = float(totals[self._rng.integers(len(totals))]) if len(totals) > 1 else totals[0]
        if self._cpu_s and kind != "parked":
            replica.loading_s = max(0.0, total_s - self._cpu_s)
            self._cores.submit(replica, now)
        else:
            self._clock.at(now + total_s, self._started, replica)

    def _cold_start(self, kind: Start) -> ColdStart:
        known = self._profile.cold_starts
        return known.get(kind) or known.get("process") or ColdStart({"total": (DEFAULT_COLD_START_S,)})

    def _loading(self, replica: SimulatedReplica, now: float, _: str) -> None:
        self._clock.at(now + replica.loading_s, self._started, replica)

    def _started(self, now: float, replica: SimulatedReplica) -> None:
        if replica.state == "starting":
            self._ready(replica, now)
            self._record(now)

    def _ready(self, replica: SimulatedReplica, now: float) -> None:
        replica.state = "ready"
        self._on_ready(replica, now)

    def _retire(self, replica: SimulatedReplica, now: float) -> None:
        served = replica.state == "ready"
        waited = replica.state == "pending"
        if served and self.scenario.parks and not self.desired and not self.parked:
            self.parked = True
        replica.state = "draining"
        replica.exists_until = now + (self.scenario.drain_s if self.desired else self.scenario.idle_drain_s)
        if served:
            self._on_retire(replica, now)
        if waited:
            self._end(replica, now)
        else:
            self.finished(now, replica)

    def _end(self, replica: SimulatedReplica, now: float) -> None:
        self._count(replica, now)
        replica.state = "exited"
        self.replicas.remove(replica)
        self._admit(now)

    def _count(self, replica: SimulatedReplica, now: float) -> None:
        held = len(replica.gpus) or (self.scenario.gpus if self.scenario.devices is None else 0)
        seconds = max(0.0, min(now, self.usage.end) - replica.admitted_at)
        self.usage.replica_seconds += seconds
        self.usage.gpu_seconds += seconds * held

    def simulation(
        self,
        method: str,
        latency: LatencyHistogram,
        held: LatencyHistogram,
        queued: LatencyHistogram,
        served: LatencyHistogram,
    ) -> Simulation:
        """Return the result as far as replicas and these latencies determine it."""
        scenario, usage = self.scenario, self.usage
        return Simulation(
            scenario.name, method, usage.end, latency, held, queued, served,
            cold_starts=sum(usage.starts.values()),
            starts=dict(usage.starts),
            replicas=usage.replicas,
            ready=usage.ready,
            replica_seconds=usage.replica_seconds,
            gpu_seconds=usage.gpu_seconds,
            cpu_seconds=usage.replica_seconds * scenario.cpus,
            assumptions=scenario.notes,
        )  # fmt: skip

    def _record(self, now: float) -> None:
        active = self.active
        self.usage.step(self.usage.replicas, now, len(active))
        self.usage.step(self.usage.ready, now, sum(each.state == "ready" for each in active))


def _initial_state(scenario: Scenario) -> object:
    """Return the autoscaler's state of a service that has been idle for long."""
    if not isinstance(scenario.scaling, Kpa):
        return None
    state: kpa.State = "active" if min_replicas(scenario.scaling) else "inactive"
    return KpaDecisionState(kpa.KpaState(), kpa.Phase(state, LONG_AGO, True, LONG_AGO))
