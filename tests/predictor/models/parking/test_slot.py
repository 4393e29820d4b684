"""The place of one model, with parts that the test holds up: what is served meanwhile, and what nobody can undo."""

import asyncio
import threading

import pytest
from tests.eventually import eventually_async
from tests.predictor.scheduling.instances import PATIENCE_S, Asked, Echo, scheduler

from pilotlight_predictor.errors import Unavailable
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.parking.slot import ParkingSlot, ParkingState
from pilotlight_predictor.repository.model_config import ModelConfig


class Part:
    """Weights of ten bytes, prepared and parked once its gate is open."""

    size = 10

    def __init__(self) -> None:
        self.host_bytes = 0
        self.gate, self.entered = threading.Event(), threading.Event()
        self.calls: list[str] = []

    def prepare(self) -> None:
        self._pass("prepare")
        self.host_bytes = self.size

    def park(self) -> None:
        self._pass("park")

    def wake(self) -> None:
        self.calls.append("wake")

    def drop_host_copy(self) -> None:
        self.host_bytes = 0

    def _pass(self, call: str) -> None:
        self.calls.append(call)
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)


def berth(part: Part) -> tuple[ParkingSlot, Asked]:
    runs = scheduler(Echo())
    served = ModelVersion(ModelConfig(name="m"), 1, runs, runs.stats, ((), ()), {})
    return ParkingSlot(served, runs, [part], lambda *_: None), Asked(runs)


def test_requests_are_served_while_a_model_prepares_to_park() -> None:
    async def scene() -> None:
        part = Part()
        place, ask = berth(part)
        preparing = asyncio.ensure_future(place.prepare())
        await eventually_async(part.entered.is_set)
        ask("meanwhile")
        await ask.all()
        part.gate.set()
        await preparing
        assert (place.state, place.host_copy.size, ask.values("meanwhile")) == (ParkingState.AWAKE, 10, [1])

    asyncio.run(scene())


def test_a_model_with_a_request_in_hand_does_not_park() -> None:
    async def scene() -> None:
        part = Part()
        place, ask = berth(part)
        ask("runs")
        with pytest.raises(Unavailable, match="has requests in flight"):
            await place.park()
        await ask.all()
        assert (place.state, part.calls) == (ParkingState.AWAKE, [])

    asyncio.run(scene())


def test_who_asked_for_parking_may_leave_and_a_request_wakes_what_has_parked_meanwhile() -> None:
    async def scene() -> None:
        part = Part()
        place, ask = berth(part)
        parking = asyncio.ensure_future(place.park())
        await eventually_async(part.entered.is_set)
        parking.cancel()
        ask("waits")
        part.gate.set()
        await ask.all()
        assert ask.values("waits") == [1]
        assert (place.state, part.calls) == (ParkingState.AWAKE, ["park", "wake"])

    asyncio.run(scene())


def test_a_model_is_not_closed_on_its_way() -> None:
    async def scene() -> None:
        part = Part()
        place, ask = berth(part)
        parking = asyncio.ensure_future(place.park())
        await eventually_async(part.entered.is_set)
        closing = asyncio.ensure_future(ask.scheduler.close())
        await asyncio.sleep(0)
        assert not closing.done()
        part.gate.set()
        await asyncio.gather(parking, closing)
        assert place.state is ParkingState.PARKED

    asyncio.run(scene())
