"""Parking state of one model version: awake, parking, parked or waking.

Used on the event loop; transfers run in a thread. While a model is not awake its scheduler queues requests, so queue
bounds, priorities and time-outs apply as they do while all instances are busy, and the first request wakes the model.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from time import monotonic, perf_counter

from pilotlight_predictor.backends.base import Parkable
from pilotlight_predictor.core.activity import Activity, observe_activity
from pilotlight_predictor.core.threads import in_thread
from pilotlight_predictor.errors import BackendFailed, NotReady, PredictorError, Unavailable
from pilotlight_predictor.gpu.cuda_driver import restore_stacks
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.parking.policy import HostCopy
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.scheduling.scheduler import Scheduler, ignore

OnWake = Callable[[ModelVersion, float], None]


class ParkingState(Enum):
    AWAKE = "awake"
    PARKING = "parking"
    PARKED = "parked"
    WAKING = "waking"


class ParkingSlot:
    """One model version that can be parked. `on_wake` is called with the version and seconds of each wake."""

    def __init__(
        self, served: ModelVersion, scheduler: Scheduler, parkables: Sequence[Parkable], on_wake: OnWake
    ) -> None:
        self.served = served
        self.state = ParkingState.AWAKE
        self.parked_at = 0.0
        self.last_refusal = ""  # why it stayed awake when idle; logged once per reason
        self._scheduler, self._parkables, self._on_wake = scheduler, list(parkables), on_wake
        self._activity: Activity | None = None
        self._transition: asyncio.Task[PredictorError | None] | None = None
        self._preparing: asyncio.Task[PredictorError | None] | None = None
        scheduler.on_request = self._on_request

    @property
    def name(self) -> str:
        return f"{self.served.name}/{self.served.version}"

    @property
    def size(self) -> int:
        """Bytes of host memory needed while parked."""
        return sum(parkable.size for parkable in self._parkables)

    @property
    def host_copy(self) -> HostCopy:
        """Host memory in use; while parking the full size counts, since it is being allocated."""
        parking = self.state is ParkingState.PARKING
        size = self.size if parking else sum(parkable.host_bytes for parkable in self._parkables)
        return HostCopy(self.name, size, self.state is not ParkingState.AWAKE, self.parked_at)

    def observe(self, now: float) -> Activity:
        """Record the request counters; `is_idle` decides on the result."""
        stats = self.served.stats
        counted = stats.execution_count + stats.success_count + stats.failure_count
        self._activity = observe_activity(self._activity, counted, self._scheduler.busy, now)
        return self._activity

    async def prepare(self) -> None:
        """Do the slow part of parking while requests are served. Raises the reason why it cannot park."""
        if self.state is not ParkingState.AWAKE:
            return
        if self._preparing is None:
            prepare = self._apply(lambda: _for_each(self._parkables, lambda each: each.prepare()))
            self._preparing = asyncio.get_running_loop().create_task(prepare)
        try:
            error = await asyncio.shield(self._preparing)
        finally:
            if self._preparing is not None and self._preparing.done():
                self._preparing = None
        if error is not None:
            self._activity = None
            raise error

    def check_free(self) -> None:
        """Raise Unavailable while requests are pending, before other models give up host memory for this one."""
        if self.state is ParkingState.WAKING or (self.state is ParkingState.AWAKE and self._scheduler.busy):
            raise self._pending_error()

    async def park(self) -> None:
        """Park the model. Raises Unavailable while requests are pending, or the failure; then it continues to serve."""
        if self.state is ParkingState.PARKED:
            return
        if self.state is ParkingState.WAKING or (self.state is ParkingState.AWAKE and not self._scheduler.suspend()):
            raise self._pending_error()
        self.state = ParkingState.PARKING
        await self._run(self._park)

    async def wake(self) -> None:
        """Wake the model, or wait for a wake under way. Raises the failure."""
        while self.state is ParkingState.PARKING and self._transition is not None:
            await asyncio.shield(self._transition)
        if self.state is not ParkingState.AWAKE:  # a failed parking leaves it awake
            await self._run(self._wake)

    async def drop_host_copy(self) -> None:
        """Free the host copy of an awake model, unless it is about to park."""
        if self.state is ParkingState.AWAKE and self._preparing is None:
            await in_thread(lambda: _for_each(self._parkables, lambda each: each.drop_host_copy()))

    async def close(self) -> None:
        """Free the weights of a closed model, in a thread, since that may be slow."""
        self._scheduler.on_request = ignore
        # Objects from server start are in reference cycles that gc does not visit (gc.freeze).
        await in_thread(self._parkables.clear)

    async def _run(self, transition: Callable[[], Awaitable[PredictorError | None]]) -> None:
        """Run a transition, or join the one under way. Cancelling the caller does not cancel the transition."""
        if self._transition is None:
            self._start(transition)
        assert self._transition is not None
        error = await asyncio.shield(self._transition)
        if error is not None:
            raise error

    def _start(self, transition: Callable[[], Awaitable[PredictorError | None]]) -> None:
        async def run() -> PredictorError | None:
            try:
                return await transition()
            finally:
                self._transition = None
                self._scheduler.release()
                if self.state is ParkingState.PARKED and self._scheduler.pending:
                    self._on_request()

        self._scheduler.hold()  # not closed during the transition
        self._transition = asyncio.get_running_loop().create_task(run())

    def _on_request(self) -> None:
        """Wake the model for a request that arrived while parked."""
        if self.state is ParkingState.PARKED and self._transition is None:
            self._start(self._wake)

    async def _park(self) -> PredictorError | None:
        parkables = self._parkables
        error = await self._apply(lambda: _all_or_none(parkables, lambda each: each.park(), lambda each: each.wake()))
        if error is not None and not any(parkable.parked for parkable in self._parkables):
            self.state, self._activity = ParkingState.AWAKE, None
            self._scheduler.resume()
            return error
        self.state, self.parked_at, self.served.parked = ParkingState.PARKED, monotonic(), True
        if error is not None:  # the rollback failed as well
            self._scheduler.reject_all(NotReady(f"'{self.served.name}' was left half parked: {error}"))
            return error
        self._log("model.parked", "freed its GPU memory")
        return None

    async def _wake(self) -> PredictorError | None:
        self.state, started = ParkingState.WAKING, perf_counter()
        error = await self._apply(lambda: _wake_all(self._parkables))
        if error is not None:
            self.state = ParkingState.PARKED
            refusal = NotReady(f"'{self.served.name}' is parked and could not be woken: {error}")
            self._scheduler.reject_all(refusal)
            return refusal
        took = perf_counter() - started
        self.state, self.served.parked, self._activity = ParkingState.AWAKE, False, None
        self._on_wake(self.served, took)
        self._log("model.woken", f"in {took:.3f} s")
        self._scheduler.resume()
        return None

    async def _apply(self, action: Callable[[], None]) -> PredictorError | None:
        """Run `action` in a thread; log and return its failure, opaque to clients unless it is a PredictorError."""
        try:
            await in_thread(action)
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            expected = isinstance(error, PredictorError) and not isinstance(error, BackendFailed)
            message = f"'{self.served.name}' could not be parked or woken: {error}"
            log(
                "model.park_failed", message, level="ERROR", error=None if expected else cause,
                model=self.served.name, version=self.served.version,
            )  # fmt: skip
            if isinstance(error, PredictorError):
                return error
            return BackendFailed(f"model '{self.served.name}' failed; see the server's log")
        return None

    def _pending_error(self) -> Unavailable:
        return Unavailable(f"'{self.served.name}' has requests in flight: park it when they are done")

    def _log(self, event: str, what: str) -> None:
        log(event, f"'{self.served.name}' {what}", model=self.served.name, version=self.served.version)


def _for_each(parkables: Sequence[Parkable], apply: Callable[[Parkable], None]) -> None:
    for parkable in parkables:
        apply(parkable)


def _wake_all(parkables: Sequence[Parkable]) -> None:
    restore_stacks()
    _all_or_none(parkables, lambda each: each.wake(), lambda each: each.park())


def _all_or_none(
    parkables: Sequence[Parkable], apply: Callable[[Parkable], None], undo: Callable[[Parkable], None]
) -> None:
    """Call `apply` for all; after a failure undo those before it, ignoring failures of the rollback, and raise."""
    for number, parkable in enumerate(parkables):
        try:
            apply(parkable)
        except BaseException:
            for before in parkables[:number]:
                with suppress(Exception):
                    undo(before)
            raise
