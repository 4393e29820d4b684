"""All models of a server that may be parked: who may, within which budget, and when somebody has been idle long enough.

The registry lets versions in and out; operators park and wake by name (routes/v2_repository.py); `follow` parks what
nobody asks for. A request wakes its model without coming by here (berth.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from pilotlight_predictor.backends.base import AnyInstance, Parks, parking_of
from pilotlight_predictor.errors import BadRequest, PredictorError, Unavailable
from pilotlight_predictor.logs import log
from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.parking.berth import Berth, Place
from pilotlight_predictor.parking.decisions import budget_bytes, is_idle, limit_files, machine_bytes, make_room, pause_s
from pilotlight_predictor.scheduler import Scheduler
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.settings import Settings


class ParkingLot:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings.model, metrics
        self._processes = settings.server.workers
        self._berths: dict[ServedVersion, Berth] = {}
        self._unfit: dict[ServedVersion, str] = {}  # why it can never be parked
        self._turn = asyncio.Lock()
        self._parking: asyncio.Task[None] | None = None  # the one whose turn it is
        metrics.parked = self._parked

    def enter(self, served: ServedVersion, instances: Sequence[AnyInstance]) -> None:
        """A version begins to serve. One that cannot be parked says why, once."""
        reason = _why_not(served, instances)
        if reason:
            self._unfit[served] = reason
            message = f"'{served.name}' is never parked: {reason}"
            log("model.never_parked", message, model=served.name, version=served.version)
            return
        assert isinstance(served.executor, Scheduler)
        self._berths[served] = Berth(served, served.executor, _parts(instances), self._woke)

    async def leave(self, served: ServedVersion) -> None:
        """After it was closed; what it had on its GPU and the host is free then."""
        berth = self._berths.pop(served, None)
        self._unfit.pop(served, None)
        if berth is not None:
            await berth.end()

    async def park(self, versions: Sequence[ServedVersion]) -> None:
        """An operator's call. Raises the reason why one of them does not park."""
        for served in versions:
            await self._park(self._berth(served), lambda: True)

    async def wake(self, versions: Sequence[ServedVersion]) -> None:
        for served in versions:
            if served in self._berths:
                await self._berths[served].wake()

    async def follow(self) -> None:
        """Parks for ever what nobody asks for; without --park-after it has nothing to do."""
        after_s = self._settings.park_after_s
        while after_s:
            await asyncio.sleep(pause_s(after_s))
            now = monotonic()
            for berth in list(self._berths.values()):
                if berth.place is Place.AWAKE and is_idle(berth.look(now), after_s, now):
                    await self._park_idle(berth, after_s)

    async def _park_idle(self, berth: Berth, after_s: float) -> None:
        """A reason why it does not park is told once: it would be the same at every look."""
        try:
            await self._park(berth, lambda: is_idle(berth.look(monotonic()), after_s, monotonic()))
        except Unavailable:
            return  # a request came just then
        except PredictorError as error:
            if str(error) != berth.refused:
                message = f"'{berth.served.name}' is idle and stays on its GPU: {error}"
                log("model.not_parked", message, level="WARNING", model=berth.served.name)
            berth.refused = str(error)

    async def _park(self, berth: Berth, still_wanted: Callable[[], bool]) -> None:
        """One at a time: two would both count on the same room. A turn ends with the parking, also where whoever asked
        for it has left."""
        await self._turn.acquire()
        self._parking = asyncio.get_running_loop().create_task(self._in_turn(berth, still_wanted))
        await asyncio.shield(self._parking)

    async def _in_turn(self, berth: Berth, still_wanted: Callable[[], bool]) -> None:
        try:
            if berth.place is not Place.PARKED:
                berth.check_free()
                await self._make_room(berth)
            await berth.prepare()
            if still_wanted():
                await berth.park()
                berth.refused = ""
        finally:
            self._turn.release()

    async def _make_room(self, berth: Berth) -> None:
        budget = budget_bytes(self._settings.park_memory, _machine(), self._processes)
        others = [each for each in self._berths.values() if each is not berth]
        given = make_room([each.copy for each in others], berth.size, budget)
        if given is None:
            left = max(budget - sum(each.copy.size for each in others if each.place is not Place.AWAKE), 0)
            raise BadRequest(
                f"'{berth.served.name}' cannot be parked: that takes {berth.size} bytes of host memory, and "
                f"--park-memory={self._settings.park_memory} leaves {left}; raise it"
            )
        for each in others:
            if each.name in given:
                await each.forget()

    def _berth(self, served: ServedVersion) -> Berth:
        berth = self._berths.get(served)
        if berth is not None:
            return berth
        raise BadRequest(f"'{served.name}' cannot be parked: {self._unfit.get(served, 'it is being unloaded')}")

    def _woke(self, served: ServedVersion, seconds: float) -> None:
        self._metrics.wake(served.name, served.version).observe(seconds)

    def _parked(self) -> tuple[int, int]:
        """Models that are parked, and bytes of the host that all have, awake or not."""
        places = [berth.place for berth in self._berths.values()]
        return places.count(Place.PARKED), sum(berth.copy.size for berth in self._berths.values())


def _why_not(served: ServedVersion, instances: Sequence[AnyInstance]) -> str:
    """Empty where it can be parked."""
    if not isinstance(served.executor, Scheduler):
        return "an ensemble has no weights of its own" if served.config.ensemble else "its requests come in sequences"
    if any(parking_of(instance) is None for instance in instances):
        backend = served.config.backend or served.config.platform
        return (
            f"as the {backend} backend loaded it, it cannot; safetensors on a GPU can, run by torch or compiled, and "
            f"classes of a model.py that define park and wake"
        )
    return ""


def _parts(instances: Sequence[AnyInstance]) -> list[Parks]:
    """Each once: instances that share weights share what parks them."""
    found = [part for instance in instances if (part := parking_of(instance)) is not None]
    return list({id(part): part for part in found}.values())


def _machine() -> int:
    return machine_bytes(_read("/proc/meminfo"), map(_read, limit_files(_read("/proc/self/cgroup"))))


def _read(file: str) -> str:
    """Empty where there is none."""
    with suppress(OSError):
        return Path(file).read_text()
    return ""
