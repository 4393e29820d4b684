"""Effects of GPU admission: facts of replicas for the decision, preemption of services, learned memory, events.

scaling/gpu_admission.py decides; the supervisor starts what is admitted. Here units are scaled to zero that must leave
their GPUs, and the memory of replicas is measured, for the next admission of their revision.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from pilotlight.k8s.quantities import mebibytes
from pilotlight.targets.local.control.autoscaler import Autoscaler
from pilotlight.targets.local.control.service_state import Revision, ServiceRun, Unit, min_replicas
from pilotlight.targets.local.delayed_queue import DelayedQueue, log_and_continue
from pilotlight.targets.local.gateway.publisher import Publisher
from pilotlight.targets.local.scaling.gpu_admission import Claim, Eviction
from pilotlight.targets.local.store.store import EventRecorder
from pilotlight.targets.local.supervisor.gpus import GpuFacts
from pilotlight.targets.local.supervisor.replica_record import Replica
from pilotlight.targets.local.supervisor.supervisor import Supervisor
from pilotlight.targets.target import Key

MEASURE_EVERY_S: Final = 5.0
MARGIN: Final = 1.05  # over the measured peak: allocators and batches vary
GROWTH: Final = 1.01  # of a peak, before it is stored again


def needed_memory(declared: int | None, peak: int) -> int:
    """Return the bytes that a replica needs on each GPU: as measured, else as declared; 0: all."""
    if declared is None:
        return 0
    return int(peak * MARGIN) or declared


class GpuAdmission:
    """Used from the event loop of the reconciler. `reconcile_service` is called for each service that must leave.

    `update_revision` stores the learned memory of a revision.
    """

    def __init__(
        self,
        runs: Mapping[Key, ServiceRun],
        supervisor: Supervisor,
        publisher: Publisher,
        autoscaler: Autoscaler,
        events: EventRecorder,
        clock: Callable[[], float],
        reconcile_service: Callable[[ServiceRun], None],
        update_revision: Callable[..., None],
    ) -> None:
        self._runs, self._supervisor, self._publisher, self._autoscaler = runs, supervisor, publisher, autoscaler
        self._events, self._clock, self._reconcile_service = events, clock, reconcile_service
        self._update_revision = update_revision
        self._waiting: dict[str, float] = {}  # since when, by replica
        self._started: dict[str, float] = {}
        self._ready: dict[str, tuple[float, float | None]] = {}  # since when, and how long its load took if known
        self.memory: dict[str, int] = {}  # of the GPUs, by id, as last measured
        self._measured_at = 0.0
        self.seen_at = 0.0  # when the gateway last told what requests there are
        self._measuring: asyncio.Task[None] | None = None
        self._later: DelayedQueue[str] = DelayedQueue(lambda _: self.reconcile())

    def facts(self, replica: Replica) -> GpuFacts:
        """Return what a decision needs to know of a replica that holds or waits for GPUs."""
        leaving, found = replica.id in self._publisher.retiring, self._find(replica)
        if found is None:
            return GpuFacts(leaving=leaving)
        run, revision, unit = found
        now, container, traffic = self._clock(), revision.spec.container, unit.traffic
        ready_at, load_s = self._ready.setdefault(replica.id, (now, None)) if replica.state == "ready" else (None, None)
        return GpuFacts(
            needed_memory(container.gpu_memory, revision.gpu_peak), leaving,
            evictable=not container.gpu_pinned and not min_replicas(unit.bounded(run.override_of(unit.name))),
            busy=bool(traffic.waiting or traffic.in_flight),
            ready_at=ready_at, swap_s=load_s if replica.swap_s is None else replica.swap_s,
            residence_s=container.gpu_residence,
            last_used=max(traffic.last_used, ready_at or 0.0), seen_at=self.seen_at,
            claim=self._claim(run, revision, unit),
        )  # fmt: skip

    def _claim(self, run: ServiceRun, revision: Revision, unit: Unit) -> Claim:
        """Return which holders may leave for a replica of this unit, if it waits.

        Requests that no replica can take claim the GPUs of busy holders too; a deploy, a lower bound and requests
        beside a serving replica those of idle ones; more replicas for load only what is free.
        """
        serves = any(
            each.state == "ready" and unit.name in (each.revision, each.workload)
            for each in self._supervisor.replicas()
            if (each.namespace, each.service) == run.key
        )
        if unit.traffic.waiting:
            return "idle" if serves else "busy"
        needed = not revision.ready_once or min_replicas(unit.bounded(run.override_of(unit.name)))
        return "idle" if needed and not serves else "none"

    def observe(self, replica: Replica) -> None:
        """Record when a replica began to wait, was admitted and became ready."""
        now, name = self._clock(), replica.id
        if (found := self._find(replica)) is not None and found[1].waits_for_gpu != replica.waits_for_gpu:
            found[1].waits_for_gpu = replica.waits_for_gpu
            self._publisher.changed()
        if replica.waits_for_gpu:
            if name not in self._waiting:
                self._waiting[name] = now
                self._record(replica, "WaitingForGpu", replica.reason)
        elif (since := self._waiting.pop(name, None)) is not None and replica.state in ("starting", "waking", "ready"):
            memory = f"{mebibytes(replica.gpu_memory)} of " if replica.gpu_memory else ""
            self._record(replica, "Admitted", f"got {memory}GPU {_ids(replica)} after {now - since:.0f} s")
        if replica.state in ("starting", "waking"):
            self._started.setdefault(name, now)
        elif replica.state == "ready":
            started = self._started.pop(name, None)
            self._ready.setdefault(name, (now, None if started is None else now - started))
        else:
            self._started.pop(name, None)
            self._ready.pop(name, None)

    def _record(self, replica: Replica, reason: str, message: str) -> None:
        self._events.record((replica.namespace, replica.service), f"Replica/{replica.id}", reason, message)

    def wait_seconds(self) -> dict[str, float]:
        """Return how long each waiting replica has waited."""
        now = self._clock()
        return {name: now - since for name, since in self._waiting.items()}

    def reconcile(self) -> None:
        """Start what gets its GPUs now; preempt and move what must leave for the others."""
        decision = self._supervisor.admit()
        if decision.next_at is not None:
            self._later.add_after(decision.next_at - self._clock(), "admission")
        replicas = {each.id: each for each in self._supervisor.replicas()}
        for replica in replicas.values():
            if replica.waits_for_gpu:
                self.observe(replica)  # the record of a start is returned, not reported
        for eviction in decision.evictions:
            if eviction.replica in replicas:
                self._preempt(replicas[eviction.replica], eviction)
        for name in decision.moves:
            if (parked := replicas.get(name)) is not None and parked.state == "parked":
                self._record(parked, "Moved", "stopped while parked: its GPU is in use and another one is free")
                self._supervisor.drain(name, parked.checks.grace_s)

    def _preempt(self, replica: Replica, eviction: Eviction) -> None:
        found = self._find(replica)
        if found is None or replica.id in self._publisher.retiring:
            return
        run, revision, unit = found
        action = "parked" if revision.parks else "stopped"
        self._record(replica, "Preempted", f"{action}: {eviction.reason}")
        self._autoscaler.preempt(run, unit, eviction.reason)
        self._reconcile_service(run)

    def _find(self, replica: Replica) -> tuple[ServiceRun, Revision, Unit] | None:
        run = self._runs.get((replica.namespace, replica.service))
        revision = run.revisions.get(replica.revision) if run else None
        return (run, revision, run.unit_of(revision, self._clock())) if run and revision else None

    def close(self) -> None:
        self._later.close()

    def tick(self, now: float) -> None:
        """Admit what the passing of time allows, and measure GPU memory now and then."""
        if self._supervisor.gpus.waiting:
            self.reconcile()
        held = self._supervisor.gpus.held
        if held and now - self._measured_at >= MEASURE_EVERY_S and (self._measuring is None or self._measuring.done()):
            self._measured_at = now
            self._measuring = asyncio.get_running_loop().create_task(self._measure())

    async def _measure(self) -> None:
        with log_and_continue("measuring the GPU memory of replicas"):
            devices = await asyncio.to_thread(self._supervisor.gpus.find)
            usage = self._supervisor.gpus.usage(devices)
            self.memory = {str(device.id): device.memory for device in devices}
            for replica in self._supervisor.replicas():
                if replica.id in usage and (found := self._find(replica)) is not None:
                    self._learn(replica, *found, max(usage[replica.id].values()))

    def _learn(self, replica: Replica, run: ServiceRun, revision: Revision, unit: Unit, used: int) -> None:
        """Record the peak of a replica that has had requests: its memory grows with the first ones."""
        ready_at, _ = self._ready.get(replica.id, (self._clock(), None))
        if unit.traffic.last_used < ready_at or used <= revision.gpu_peak * GROWTH:
            return
        declared = revision.spec.container.gpu_memory
        if declared and used > max(declared, revision.gpu_peak):
            message = f"uses {mebibytes(used)} of GPU {_ids(replica)}, declared are {mebibytes(declared)}"
            self._record(replica, "GpuMemoryExceeded", message)
        revision.gpu_peak = used
        self._update_revision(run.key, revision, gpu_peak=used)


def _ids(replica: Replica) -> str:
    return ", ".join(map(str, replica.gpus))
