"""The place of one model version that may be parked: awake, on its way to the host or back, or parked.

Lives on the event loop; the way itself takes a thread. While it is away the scheduler keeps what comes in its line, so
bounds, priorities and time-outs hold as they do while all instances are busy, and the first that comes wakes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from time import monotonic, perf_counter

from pilotlight_predictor.backends.base import Parks
from pilotlight_predictor.errors import BackendFailed, NotReady, PredictorError, Unavailable
from pilotlight_predictor.logs import log
from pilotlight_predictor.parking.decisions import Copy, Look, look
from pilotlight_predictor.scheduler import Scheduler, nobody_listens
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.threads import in_thread

Told = Callable[[ServedVersion, float], None]


class Place(Enum):
    AWAKE = "awake"
    PARKING = "parking"
    PARKED = "parked"
    WAKING = "waking"


class Berth:
    """`woke` is told of each wake and its seconds."""

    def __init__(self, served: ServedVersion, scheduler: Scheduler, parts: Sequence[Parks], woke: Told) -> None:
        self.served = served
        self.place = Place.AWAKE
        self.parted = 0.0  # when it was parked last
        self.refused = ""  # why it was not parked when it last should have been: told once
        self._scheduler, self._parts, self._woke = scheduler, list(parts), woke
        self._seen: Look | None = None
        self._under_way: asyncio.Task[PredictorError | None] | None = None
        self._preparing: asyncio.Task[PredictorError | None] | None = None
        scheduler.asked = self._asked

    @property
    def name(self) -> str:
        return f"{self.served.name}/{self.served.version}"

    @property
    def size(self) -> int:
        """Host memory that it takes while it is parked."""
        return sum(part.size for part in self._parts)

    @property
    def copy(self) -> Copy:
        """On its way it counts whole: the memory is being taken."""
        kept = self.size if self.place is Place.PARKING else sum(part.kept for part in self._parts)
        return Copy(self.name, kept, self.place is not Place.AWAKE, self.parted)

    def look(self, now: float) -> Look:
        """What has been counted of it, by which idleness is told."""
        stats = self.served.stats
        counted = stats.execution_count + stats.success_count + stats.failure_count
        self._seen = look(self._seen, counted, self._scheduler.busy, now)
        return self._seen

    async def prepare(self) -> None:
        """What parking needs and takes long, while requests are served. Raises what keeps it from parking."""
        if self.place is not Place.AWAKE:
            return
        if self._preparing is None:
            self._preparing = asyncio.get_running_loop().create_task(self._moved(_prepare_all))
        try:
            error = await asyncio.shield(self._preparing)
        finally:
            if self._preparing is not None and self._preparing.done():
                self._preparing = None
        if error is not None:
            self._seen = None
            raise error

    def check_free(self) -> None:
        """Raises Unavailable while it has something to do: nobody gives up memory for one that stays."""
        if self.place is Place.WAKING or (self.place is Place.AWAKE and self._scheduler.busy):
            raise Unavailable(f"'{self.served.name}' has requests to answer: park it when they are done")

    async def park(self) -> None:
        """Raises Unavailable while it has something to do, and what keeps it from parking; then it goes on serving."""
        if self.place is Place.PARKED:
            return
        if self.place is Place.WAKING or (self.place is Place.AWAKE and not self._scheduler.rest()):
            raise Unavailable(f"'{self.served.name}' has requests to answer: park it when they are done")
        self.place = Place.PARKING
        await self._done(self._park)

    async def wake(self) -> None:
        """Raises what keeps it from waking; one that failed to park is awake."""
        while self.place is Place.PARKING and self._under_way is not None:
            await asyncio.shield(self._under_way)
        if self.place is not Place.AWAKE:
            await self._done(self._wake)

    async def forget(self) -> None:
        """Gives back the host's memory of a model that is awake, unless it leaves just then."""
        if self.place is Place.AWAKE and self._preparing is None:
            await in_thread(lambda: _forget_all(self._parts))

    async def end(self) -> None:
        """Of a model that is closed: lets go of its weights, which may take its time. Nothing else frees them: whoever
        was there at the start is in circles that the collector does not walk (assembly.py)."""
        self._scheduler.asked = nobody_listens
        await in_thread(self._parts.clear)

    async def _done(self, way: Callable[[], Awaitable[PredictorError | None]]) -> None:
        """One way at a time; whoever waits for it may leave, the way is gone to its end."""
        if self._under_way is None:
            self._begin(way)
        assert self._under_way is not None
        error = await asyncio.shield(self._under_way)
        if error is not None:
            raise error

    def _begin(self, way: Callable[[], Awaitable[PredictorError | None]]) -> None:
        async def go() -> PredictorError | None:
            try:
                return await way()
            finally:
                self._under_way = None
                self._scheduler.release()
                if self.place is Place.PARKED and self._scheduler.pending:
                    self._asked()

        self._scheduler.hold()  # it is not closed under way
        self._under_way = asyncio.get_running_loop().create_task(go())

    def _asked(self) -> None:
        """A request came while it is away."""
        if self.place is Place.PARKED and self._under_way is None:
            self._begin(self._wake)

    async def _park(self) -> PredictorError | None:
        error = await self._moved(_park_all)
        if error is not None and not any(part.parked for part in self._parts):
            self.place, self._seen = Place.AWAKE, None
            self._scheduler.resume()
            return error
        self.place, self.parted, self.served.parked = Place.PARKED, monotonic(), True
        if error is not None:  # and those that had left did not come back
            self._scheduler.turn_away(NotReady(f"'{self.served.name}' was left half parked: {error}"))
            return error
        self._tell("model.parked", "gave its GPU memory back")
        return None

    async def _wake(self) -> PredictorError | None:
        self.place, started = Place.WAKING, perf_counter()
        error = await self._moved(_wake_all)
        if error is not None:
            self.place = Place.PARKED
            told = NotReady(f"'{self.served.name}' is parked and could not be woken: {error}")
            self._scheduler.turn_away(told)
            return told
        took = perf_counter() - started
        self.place, self.served.parked, self._seen = Place.AWAKE, False, None
        self._woke(self.served, took)
        self._tell("model.woken", f"in {took:.3f} s")
        self._scheduler.resume()
        return None

    async def _moved(self, way: Callable[[Sequence[Parks]], None]) -> PredictorError | None:
        try:
            await in_thread(lambda: way(self._parts))
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            ours = isinstance(error, PredictorError) and not isinstance(error, BackendFailed)
            message, named = f"'{self.served.name}' could not be parked or woken: {error}", self.served
            log(
                "model.park_failed", message, level="ERROR", error=None if ours else cause,
                model=named.name, version=named.version,
            )  # fmt: skip
            if isinstance(error, PredictorError):
                return error
            return BackendFailed(f"model '{self.served.name}' failed; the server's log has the reason")
        return None

    def _tell(self, event: str, what: str) -> None:
        log(event, f"'{self.served.name}' {what}", model=self.served.name, version=self.served.version)


def _prepare_all(parts: Sequence[Parks]) -> None:
    for part in parts:
        part.prepare()


def _park_all(parts: Sequence[Parks]) -> None:
    _all_or_none(parts, lambda part: part.park(), lambda part: part.wake())


def _wake_all(parts: Sequence[Parks]) -> None:
    _all_or_none(parts, lambda part: part.wake(), lambda part: part.park())


def _all_or_none(parts: Sequence[Parks], go: Callable[[Parks], None], back: Callable[[Parks], None]) -> None:
    """One that cannot go brings those before it back, as far as they come."""
    for number, part in enumerate(parts):
        try:
            go(part)
        except BaseException:
            for before in parts[:number]:
                with suppress(Exception):
                    back(before)
            raise


def _forget_all(parts: Sequence[Parks]) -> None:
    for part in parts:
        part.forget()
