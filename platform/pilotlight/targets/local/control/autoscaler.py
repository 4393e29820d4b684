"""Autoscaler loop of the embedded platform: one decision per second for each unit that can have replicas.

The loop sleeps while every service is at zero and none has a schedule; a waiting request or a deploy resumes it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from pilotlight.targets.local.control.metrics_source import MetricsSource
from pilotlight.targets.local.control.replicas import ReplicaSet
from pilotlight.targets.local.control.service_state import Revision, ServiceRun, Unit, activation_replicas, min_replicas
from pilotlight.targets.local.delayed_queue import log_and_continue
from pilotlight.targets.local.scaling.keda import scheduled
from pilotlight.targets.local.scaling.types import Decision, Observed
from pilotlight.targets.local.supervisor.replica_record import PARKED_STATES, Replica

TICK_S: Final = 1.0


class Autoscaler:
    """`on_decision` is called for every decision that changes a count, before replicas start or end.

    `on_tick` is called after each tick.
    """

    def __init__(
        self,
        runs: Callable[[], Iterable[ServiceRun]],
        replica_set: ReplicaSet,
        metrics: MetricsSource,
        clock: Callable[[], float],
        on_decision: Callable[[ServiceRun, Unit, Decision], None],
        on_tick: Callable[[float], None] = lambda now: None,
    ) -> None:
        self._runs, self._replica_set, self._metrics = runs, replica_set, metrics
        self._clock, self._on_decision, self._on_tick = clock, on_decision, on_tick
        self._active = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._loop())

    def resume(self) -> None:
        """Resume ticking: a replica runs or may have to start."""
        self._active.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def wake(self, run: ServiceRun, unit: Unit, waiting: int) -> None:
        """Activate a unit without replicas for a waiting request, without waiting for the next tick."""
        unit.traffic.wait(max(unit.traffic.waiting, waiting), self._clock())
        self._active.set()
        if self._is_leaving(run, unit):
            return
        count = activation_replicas(unit.bounded(run.override_of(unit.name)))
        if unit.desired < count:
            state = unit.decision.state if unit.decision else None
            self._apply(run, unit, Decision(count, f"{count}: a request is waiting", state, "activation"))

    def preempt(self, run: ServiceRun, unit: Unit, reason: str) -> None:
        """Scale a unit to zero before its window is over, so that another service gets its GPU.

        The samples still in its window cannot scale it up again: a unit at zero is skipped until a request waits or
        its lower bound rises.
        """
        self._apply(run, unit, Decision(0, f"0: preempted, {reason}", rule="yield"))

    def _is_leaving(self, run: ServiceRun, unit: Unit) -> bool:
        """Whether a preempted unit has not left its GPUs yet: its requests wait, or it would never leave them."""
        if unit.desired or unit.decision is None or unit.decision.rule != "yield":
            return False
        own = (each for each in self._replica_set.living(run) if unit.name in (each.revision, each.workload))
        return any(each.gpus and each.state != "parked" for each in own)

    async def _loop(self) -> None:
        while True:
            await self._active.wait()
            await asyncio.sleep(TICK_S)
            with log_and_continue("the autoscaler loop"):
                if not self._tick(self._clock()):
                    self._active.clear()

    def _tick(self, now: float) -> bool:
        """Scale every service; return whether another tick is needed."""
        busy = False
        for run in list(self._runs()):
            with log_and_continue(f"scaling {'/'.join(run.key)}"):  # one failing service must not stop the others
                busy = self.scale(run, now) or busy
        self._metrics.refresh(self._replica_set, list(self._runs()), now)
        self._on_tick(now)
        return busy

    def scale(self, run: ServiceRun, now: float) -> bool:
        """Decide and reconcile one service; return whether it needs another tick."""
        active = [replica for replica in self._replica_set.active(run) if replica.state not in PARKED_STATES]
        busy = bool(active)
        for unit, revisions in list(_units(run, now)):
            replicas = [replica for replica in active if replica.revision in revisions]
            newest = run.revisions[revisions[0]]
            workload = run.spec.workload(newest.spec.workload)
            if workload.mode == "serverless" and newest.name not in run.required_revisions(workload):
                unit.set_unreachable()
                continue
            if self._is_leaving(run, unit):
                unit.traffic.tick(now)
                busy = True
                continue
            override = run.override_of(unit.name)
            by_schedule = bool(scheduled(unit.scaling))
            least = min_replicas(unit.bounded(override))
            if not (replicas or unit.desired or unit.traffic.waiting or least or by_schedule):
                continue
            self._apply(run, unit, unit.decide(self._observed(unit, newest, replicas, now), override, now))
            busy = busy or by_schedule or bool(unit.desired)
        self._replica_set.reconcile(run, now)
        return busy

    def _observed(self, unit: Unit, newest: Revision, replicas: Sequence[Replica], now: float) -> Observed:
        unit.traffic.tick(now)
        ready = sum(replica.state == "ready" for replica in replicas)
        return Observed(
            len(replicas), ready, unit.traffic.samples, unit.traffic.waiting, unit.traffic.in_flight,
            self._metrics.values(unit, replicas, now), unit.created_at, was_ready=newest.ready_once,
        )  # fmt: skip

    def _apply(self, run: ServiceRun, unit: Unit, decision: Decision) -> None:
        changed = decision.desired != unit.desired
        unit.decision = decision
        if changed:
            unit.desired = decision.desired
            unit.decisions[decision.rule] += 1
            self._on_decision(run, unit, decision)


def _units(run: ServiceRun, now: float) -> Iterator[tuple[Unit, list[str]]]:
    """Yield each unit with the names of its revisions, newest first."""
    for workload in run.spec.workloads:
        names = [workload.revision.name, *(n for n in run.revisions_of(workload.name) if n != workload.revision.name)]
        if workload.mode == "serverless":
            for name in names:
                yield run.unit_of(run.revisions[name], now), [name]
        else:
            yield run.unit_of(run.revisions[names[0]], now), names
