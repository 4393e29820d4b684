"""Batches within the byte budget: as large as the memory that is left, at least one request, and counted while they
run."""

import asyncio
import threading

import pytest
from tests.eventually import eventually_async
from tests.predictor.scheduling.instances import Asked, Echo, scheduler

from pilotlight_predictor.core.byte_budget import ByteBudget
from pilotlight_predictor.scheduling.batching import affordable

ROWS = 1000  # of 4 bytes, as inputs and as outputs
SIZE = 8 * ROWS


@pytest.mark.parametrize(
    ("sizes", "left", "expected"),
    [([], 5, (0, 0)), ([9], 5, (1, 9)), ([2, 3, 1], 5, (2, 5)), ([2, 3, 1], 6, (3, 6)), ([6, 0, 0], 0, (1, 6))],
)
def test_a_batch_takes_what_fits_and_at_least_one(sizes: list[int], left: int, expected: tuple[int, int]) -> None:
    assert affordable(sizes, left) == expected


@pytest.mark.parametrize(
    ("in_flight", "batches", "reserved"),
    [(0, [5 * ROWS], 0), (10 * SIZE, [5 * ROWS], 5 * SIZE), (13 * SIZE, [3 * ROWS, 2 * ROWS], 3 * SIZE),
     (16 * SIZE, [ROWS] * 5, SIZE)],
    ids=["unused", "enough", "scarce", "none left"],
)  # fmt: skip
def test_batches_shrink_with_the_memory_that_is_left(in_flight: int, batches: list[int], reserved: int) -> None:
    async def scene() -> None:
        gate, budget = threading.Event(), ByteBudget(16 * SIZE)
        gate.set()
        echo = Echo(gate)
        ask = Asked(scheduler(echo, max_rows=8 * ROWS, budget=budget))
        ask("shows how large outputs are", *[1.0] * ROWS)
        await ask.all()
        gate.clear()
        budget.bytes_in_flight = in_flight
        for number in range(5):
            ask(f"{number}", *[1.0] * ROWS)
        await eventually_async(lambda: len(echo.executed) == 2)
        assert budget.bytes_in_flight == in_flight + reserved
        gate.set()
        await ask.all()
        assert echo.executed[1:] == batches
        assert budget.bytes_in_flight == in_flight
        await ask.scheduler.close()

    asyncio.run(scene())


def test_a_hung_batch_does_not_keep_its_bytes() -> None:
    async def scene() -> None:
        gate, budget = threading.Event(), ByteBudget(10)
        echo = Echo(gate)
        ask = Asked(scheduler(echo, budget=budget))
        budget.bytes_in_flight = 10
        ask("hangs")
        await eventually_async(echo.entered.is_set)
        assert budget.bytes_in_flight == 14
        ask.scheduler.give_up_hung(0)
        assert budget.bytes_in_flight == 10
        gate.set()

    asyncio.run(scene())
