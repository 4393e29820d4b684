"""Several models and one budget, with weights that tests steer: who waits, who is refused, what a failure leaves."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.eventually import eventually_async
from tests.predictor.gpu.driver import Driver
from tests.predictor.scheduling.instances import PATIENCE_S, Asked, Echo, scheduler

from pilotlight_predictor.config import Settings
from pilotlight_predictor.errors import BackendFailed, BadRequest, NotReady, Unavailable
from pilotlight_predictor.gpu import cuda_driver
from pilotlight_predictor.metrics import Metrics
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.models.parking.pool import ParkingPool
from pilotlight_predictor.repository.model_config import ModelConfig


class Weights:
    """Keeps its copy while awake, as those on a GPU do. `gate` holds a parking until it is set."""

    def __init__(self, size: int = 600) -> None:
        self.size, self.host_bytes, self.parked = size, 0, False
        self.gate, self.begun = threading.Event(), threading.Event()
        self.gate.set()
        self.refuses: set[str] = set()

    def prepare(self) -> None:
        self.host_bytes = self.size

    def park(self) -> None:
        self.begun.set()
        assert self.gate.wait(PATIENCE_S)
        self._may("park")
        self.parked = True

    def wake(self) -> None:
        self._may("wake")
        self.parked = False

    def drop_host_copy(self) -> None:
        self.host_bytes = 0

    def _may(self, name: str) -> None:
        if name in self.refuses:
            raise BackendFailed(f"{name} failed")


class Parking(Echo):
    def __init__(self, weights: Weights, gate: threading.Event | None = None) -> None:
        super().__init__(gate)
        self.parking = weights


class Model:
    def __init__(self, lot: ParkingPool, name: str, instances: Sequence[Parking]) -> None:
        self.lot, self.ask = lot, Asked(scheduler(*instances))
        self.served = ModelVersion(ModelConfig(name), 1, self.ask.scheduler, self.ask.scheduler.stats, ((), ()), {})
        lot.add(self.served, instances)

    async def park(self) -> None:
        await self.lot.park([self.served])

    async def wake(self) -> None:
        await self.lot.wake([self.served])


def in_a_lot(scene: Callable[[ParkingPool], Any]) -> None:
    async def run() -> None:
        settings = Settings()
        await scene(ParkingPool(replace(settings, model=replace(settings.model, park_memory="1000")), Metrics()))

    asyncio.run(run())


def test_an_admin_who_leaves_does_not_let_another_take_the_same_room() -> None:
    async def scene(lot: ParkingPool) -> None:
        first, second = Weights(), Weights()
        one, two = Model(lot, "one", [Parking(first)]), Model(lot, "two", [Parking(second)])
        first.gate.clear()
        admin = asyncio.ensure_future(one.park())
        await eventually_async(first.begun.is_set)
        assert lot._usage() == (0, 600)  # what is being taken counts
        admin.cancel()
        other = asyncio.ensure_future(two.park())
        await asyncio.sleep(0)
        first.gate.set()
        with pytest.raises(BadRequest, match="leaves 400"):
            await other
        assert (first.parked, second.parked) == (True, False)

    in_a_lot(scene)


def test_nobody_gives_up_a_copy_for_a_model_that_is_busy() -> None:
    async def scene(lot: ParkingPool) -> None:
        host_bytes, gate = Weights(), threading.Event()
        idle, busy = Model(lot, "idle", [Parking(host_bytes)]), Model(lot, "busy", [echo := Parking(Weights(), gate)])
        await idle.park()
        await idle.wake()
        busy.ask("runs")
        await eventually_async(echo.entered.is_set)
        with pytest.raises(Unavailable):
            await busy.park()
        assert host_bytes.host_bytes == 600
        gate.set()
        await busy.ask.all()
        await busy.park()
        assert host_bytes.host_bytes == 0

    in_a_lot(scene)


def test_stacks_of_kernels_are_free_while_all_models_are_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(cuda_driver, "library", lambda: driver)
    monkeypatch.setattr(cuda_driver.Context, "devices", set())  # without those of other tests
    cuda_driver.Context(0)

    async def scene(lot: ParkingPool) -> None:
        one, two = (Model(lot, name, [Parking(Weights(100))]) for name in ("one", "two"))
        await one.park()
        assert driver.stack_limit == 1024
        await two.park()
        assert driver.stack_limit == 0
        one.ask("a")
        await one.ask.all()
        assert (one.ask.values("a"), driver.stack_limit) == ([1], 1024)
        lot.add(two.served, [Echo()])  # cannot be parked: its kernels may run at any time
        await one.park()
        assert driver.stack_limit == 1024

    in_a_lot(scene)


def test_a_model_without_room_goes_on_serving() -> None:
    async def scene(lot: ParkingPool) -> None:
        model = Model(lot, "large", [Parking(Weights(1001))])
        with pytest.raises(BadRequest, match="takes 1001 bytes"):
            await model.park()
        model.ask("a")
        await model.ask.all()
        assert model.ask.values("a") == [1]

    in_a_lot(scene)


def test_a_wake_during_a_parking_that_fails_finds_the_model_awake() -> None:
    async def scene(lot: ParkingPool) -> None:
        weights = Weights()
        model = Model(lot, "m", [Parking(weights)])
        weights.gate.clear()
        weights.refuses = {"park"}
        parking = asyncio.ensure_future(model.park())
        await eventually_async(weights.begun.is_set)
        waking = asyncio.ensure_future(model.wake())
        await asyncio.sleep(0)
        weights.gate.set()
        with pytest.raises(BackendFailed):
            await parking
        await waking
        assert not model.served.parked

    in_a_lot(scene)


def test_a_parking_that_can_neither_end_nor_be_undone_is_parked_and_the_next_request_wakes_all() -> None:
    async def scene(lot: ParkingPool) -> None:
        left, stays = Weights(100), Weights(100)
        model = Model(lot, "pair", [Parking(left), Parking(stays)])
        left.refuses, stays.refuses = {"wake"}, {"park"}
        stays.gate.clear()
        parking = asyncio.ensure_future(model.park())
        await eventually_async(stays.begun.is_set)
        model.ask("meanwhile")
        stays.gate.set()
        with pytest.raises(BackendFailed):
            await parking
        assert isinstance(model.ask.answers["meanwhile"], NotReady)
        assert (model.served.parked, lot._usage()[0]) == (True, 1)
        left.refuses.clear()
        model.ask("after")
        await model.ask.all()
        assert model.ask.values("after") == [1]
        assert (left.parked, model.served.parked) == (False, False)

    in_a_lot(scene)
