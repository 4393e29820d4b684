"""The beat of the autoscaler: once a second each unit that has anything to scale is asked how many it wants.

A machine full of services at zero has no beat at all: it begins with a request that waits, or a deploy, and ends when
nothing runs any more.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from pilotlight.targets.local.fleet import Fleet
from pilotlight.targets.local.rounds import Survived
from pilotlight.targets.local.scaling.model import Decision, Observed
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.signals import Signals
from pilotlight.targets.local.supervisor.replica import AWAY, Replica
from pilotlight.targets.local.units import Revision, Unit, activation, least

BEAT_S: Final = 1.0


class Scaler:
    """`decided` hears of every decision that changes a count, before the fleet acts on it."""

    def __init__(
        self,
        runs: Callable[[], Iterable[ServiceRun]],
        fleet: Fleet,
        signals: Signals,
        clock: Callable[[], float],
        decided: Callable[[ServiceRun, Unit, Decision], None],
    ) -> None:
        self._runs = runs
        self._fleet = fleet
        self._signals = signals
        self._clock = clock
        self._decided = decided
        self._active = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def stir(self) -> None:
        """Something runs, or shall."""
        self._active.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def wake(self, run: ServiceRun, unit: Unit, waiting: int) -> None:
        """A request waits for a unit without replicas: no beat is waited for."""
        unit.traffic.waiting = max(unit.traffic.waiting, waiting)
        least = activation(unit.bounded(run.override_of(unit.name)))
        if unit.desired < least:
            memory = unit.decision.memory if unit.decision else None
            self._take(run, unit, Decision(least, f"{least}: a request waits", memory, "activation"))
        self._active.set()

    def give_way(self, run: ServiceRun, unit: Unit, service: str) -> None:
        """To zero before its window is over: another service is asked and needs its GPU. Its past does not bring it
        back, since a unit at zero is asked nothing until somebody waits for it or its bounds say otherwise."""
        self._take(run, unit, Decision(0, f"0: its GPU goes to {service}, which is asked", rule="yield"))

    async def _beat(self) -> None:
        while True:
            await self._active.wait()
            await asyncio.sleep(BEAT_S)
            with Survived("the autoscaler's beat"):
                if not self._round(self._clock()):
                    self._active.clear()

    def _round(self, now: float) -> bool:
        """Whether another will be needed."""
        busy = False
        for run in list(self._runs()):
            with Survived(f"scaling {'/'.join(run.key)}"):  # the beat of the others goes on
                busy = self.step(run, now) or busy
        self._signals.follow(self._fleet, list(self._runs()), now)
        return busy

    def step(self, run: ServiceRun, now: float) -> bool:
        """One beat of one service; whether there will be something to decide at the next."""
        staying = [replica for replica in self._fleet.staying(run) if replica.state not in AWAY]
        busy = bool(staying)
        for unit, revisions in list(_units(run, now)):
            mine = [replica for replica in staying if replica.revision in revisions]
            newest = run.revisions[revisions[0]]
            if not _reachable(run, newest):
                unit.rest()
                continue
            override = run.override_of(unit.name)
            if not mine and not unit.desired and not unit.traffic.waiting and not least(unit.bounded(override)):
                continue
            self._take(run, unit, unit.decide(self._observed(unit, newest, mine, now), override, now))
            busy = busy or bool(unit.desired)
        self._fleet.adjust(run, now)
        return busy

    def _observed(self, unit: Unit, newest: Revision, replicas: Sequence[Replica], now: float) -> Observed:
        unit.traffic.tick(now)
        ready = sum(replica.state == "ready" for replica in replicas)
        return Observed(
            len(replicas), ready, unit.traffic.samples, unit.traffic.waiting, unit.traffic.in_flight,
            self._signals.of(unit, replicas, now), unit.created_at, was_ready=newest.ready_once,
        )  # fmt: skip

    def _take(self, run: ServiceRun, unit: Unit, decision: Decision) -> None:
        changed = decision.desired != unit.desired
        unit.decision = decision
        if changed:
            unit.desired = decision.desired
            unit.decisions[decision.rule] += 1
            self._decided(run, unit, decision)


def _units(run: ServiceRun, now: float) -> Iterator[tuple[Unit, list[str]]]:
    """Each unit with its revisions, the newest first."""
    for workload in run.spec.workloads:
        names = [workload.revision.name, *(n for n in run.revisions_of(workload.name) if n != workload.revision.name)]
        if workload.mode == "serverless":
            for name in names:
                yield run.unit_of(run.revisions[name], now), [name]
        else:
            yield run.unit_of(run.revisions[names[0]], now), names


def _reachable(run: ServiceRun, revision: Revision) -> bool:
    workload = run.spec.workload(revision.spec.workload)
    return workload.mode != "serverless" or revision.name in run.needed(workload)
