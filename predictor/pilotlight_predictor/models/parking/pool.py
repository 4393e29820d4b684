"""All models of a server that can be parked, within one host memory budget.

The registry adds and removes versions; operators park and wake by name (protocols/v2); `park_idle_models` parks idle
ones. A request wakes its model through its ParkingSlot, not through the pool.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from pilotlight.wire.machine import total_memory
from pilotlight_predictor.backends.base import AnyInstance, parking_of
from pilotlight_predictor.config import Settings
from pilotlight_predictor.core.activity import is_idle, poll_interval_s
from pilotlight_predictor.core.threads import in_thread
from pilotlight_predictor.errors import BadRequest, PredictorError, Unavailable
from pilotlight_predictor.gpu.cuda_driver import free_stacks
from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.parking.policy import budget_bytes, copies_to_drop
from pilotlight_predictor.models.parking.slot import ParkingSlot, ParkingState
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.scheduling.scheduler import Scheduler


class ParkingPool:
    """Slots of all parkable versions, of which one is parked at a time."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings.model, metrics
        self._processes = settings.server.workers
        self._slots: dict[ModelVersion, ParkingSlot] = {}
        self._unparkable: dict[ModelVersion, str] = {}  # reason
        self._lock = asyncio.Lock()
        self._current: asyncio.Task[None] | None = None
        metrics.parked = self._usage

    def add(self, served: ModelVersion, instances: Sequence[AnyInstance]) -> None:
        """Register a version that begins to serve; log the reason if it can never be parked."""
        reason = _unparkable_reason(served, instances)
        if reason:
            self._unparkable[served] = reason
            message = f"'{served.name}' is not parked: {reason}"
            log("model.never_parked", message, model=served.name, version=served.version)
            return
        assert isinstance(served.executor, Scheduler)
        parkables = [each for instance in instances if (each := parking_of(instance)) is not None]
        unique = list({id(each): each for each in parkables}.values())  # instances that share weights share it
        self._slots[served] = ParkingSlot(
            served, served.executor, unique, lambda each, s: self._metrics.wake(each.name, each.version).observe(s)
        )

    async def remove(self, served: ModelVersion) -> None:
        """Unregister a closed version and free its GPU and host memory."""
        slot = self._slots.pop(served, None)
        self._unparkable.pop(served, None)
        if slot is not None:
            await slot.close()

    async def park(self, versions: Sequence[ModelVersion]) -> None:
        """Park on an operator's request. Raises the reason why one of them cannot be parked."""
        for served in versions:
            slot = self._slots.get(served)
            if slot is None:
                reason = self._unparkable.get(served, "it is being unloaded")
                raise BadRequest(f"'{served.name}' cannot be parked: {reason}")
            await self._park(slot, lambda: True)

    async def wake(self, versions: Sequence[ModelVersion]) -> None:
        for served in versions:
            if served in self._slots:
                await self._slots[served].wake()

    async def park_idle_models(self) -> None:
        """Park idle models until cancelled; return at once without --park-after."""
        after_s = self._settings.park_after_s
        while after_s:
            await asyncio.sleep(poll_interval_s(after_s))
            now = monotonic()
            for slot in list(self._slots.values()):
                if slot.state is ParkingState.AWAKE and is_idle(slot.observe(now), after_s, now):
                    await self._park_idle(slot, after_s)

    async def _park_idle(self, slot: ParkingSlot, after_s: float) -> None:
        """Park an idle model; log a refusal once, since every poll would repeat it."""
        try:
            await self._park(slot, lambda: is_idle(slot.observe(monotonic()), after_s, monotonic()))
        except Unavailable:
            return  # a request has just arrived
        except PredictorError as error:
            if str(error) != slot.last_refusal:
                message = f"'{slot.served.name}' is idle but stays on its GPU: {error}"
                log("model.not_parked", message, level="WARNING", model=slot.served.name)
            slot.last_refusal = str(error)

    async def _park(self, slot: ParkingSlot, still_idle: Callable[[], bool]) -> None:
        """Park one model at a time: two would count on the same host memory.

        The lock is released by the parking task, also when the caller is cancelled.
        """
        await self._lock.acquire()
        self._current = asyncio.get_running_loop().create_task(self._park_locked(slot, still_idle))
        await asyncio.shield(self._current)

    async def _park_locked(self, slot: ParkingSlot, still_idle: Callable[[], bool]) -> None:
        try:
            if slot.state is not ParkingState.PARKED:
                slot.check_free()
                await self._reserve_host_memory(slot)
            await slot.prepare()
            if still_idle():
                await slot.park()
                slot.last_refusal = ""
                if self._settings.control_mode == "none" and self._all_parked():  # else a load may run kernels
                    await in_thread(lambda: free_stacks(self._all_parked))
        finally:
            self._lock.release()

    async def _reserve_host_memory(self, slot: ParkingSlot) -> None:
        budget = budget_bytes(self._settings.park_memory, total_memory(), self._processes)
        others = [each for each in self._slots.values() if each is not slot]
        dropped = copies_to_drop([each.host_copy for each in others], slot.size, budget)
        if dropped is None:
            left = max(budget - sum(each.host_copy.size for each in others if each.state is not ParkingState.AWAKE), 0)
            raise BadRequest(
                f"'{slot.served.name}' cannot be parked: that takes {slot.size} bytes of host memory, and "
                f"--park-memory={self._settings.park_memory} leaves {left}; raise it"
            )
        for each in others:
            if each.name in dropped:
                await each.drop_host_copy()

    def _all_parked(self) -> bool:
        states = {slot.state for slot in list(self._slots.values())}
        return states == {ParkingState.PARKED} and not self._unparkable

    def _usage(self) -> tuple[int, int]:
        """Number of parked models, and bytes of all host copies, also of awake models."""
        places = [slot.state for slot in self._slots.values()]
        return places.count(ParkingState.PARKED), sum(slot.host_copy.size for slot in self._slots.values())


def _unparkable_reason(served: ModelVersion, instances: Sequence[AnyInstance]) -> str:
    """Return why a version can never be parked; empty if it can."""
    if not isinstance(served.executor, Scheduler):
        return "an ensemble has no weights of its own" if served.config.ensemble else "its requests come in sequences"
    if any(parking_of(instance) is None for instance in instances):
        backend = served.config.backend or served.config.platform
        return (
            f"the {backend} backend cannot park it; safetensors on a GPU (torch or compiled) and classes of a"
            " model.py that define park and wake can be parked"
        )
    return ""
