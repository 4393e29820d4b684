"""Weights that leave a device and come back, and what stands when its driver refuses something on the way."""

import ctypes

import pytest
from tests.predictor.gpu.driver import GRAIN, Driver

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cuda_driver import Context
from pilotlight_predictor.gpu.parked_weights import ParkedWeights
from pilotlight_predictor.gpu.safetensors_upload import Block

SIZE = 3 * GRAIN - 100


def blocks(number: int = 2) -> list[Block]:
    made = [Block.allocate(Context(0), SIZE, parks=True) for _ in range(number)]
    for block in made:
        ctypes.memmove(block.pointer, pattern(), SIZE)
    return made


def pattern() -> bytes:
    return bytes(range(250)) * (SIZE // 250) + bytes(SIZE % 250)


def data(weights: list[Block]) -> set[bytes]:
    return {ctypes.string_at(block.pointer, block.size) for block in weights}


def test_weights_come_back_as_they_were_wherever_pieces_end(driver: Driver) -> None:
    held = blocks()
    weights = ParkedWeights(held)
    for _ in range(2):
        weights.park()
        assert (weights.parked, driver.mapped) == (True, {})
        weights.wake(largest=GRAIN)
        assert (weights.parked, data(held)) == (False, {pattern()})


def test_a_device_that_is_in_trouble_before_anything_has_left_keeps_the_weights(driver: Driver) -> None:
    held = blocks()
    weights = ParkedWeights(held)
    weights.park()
    weights.wake()
    driver.refused["cuCtxSynchronize"] = 1  # the first block's context settles, the second's does not
    with pytest.raises(LoadFailed):
        weights.park()
    assert (weights.parked, data(held)) == (False, {pattern()})


def test_weights_that_left_in_part_are_parked_and_come_back_whole(driver: Driver) -> None:
    held = blocks()
    weights = ParkedWeights(held, on_parked=lambda: 1 / 0)
    driver.refused["cuMemUnmap"] = 1  # of two
    weights.park()
    assert weights.parked
    assert len(driver.mapped) == 1
    with pytest.raises(LoadFailed):
        weights.wake()
    assert weights.parked
    driver.refused.clear()
    weights.wake()
    assert data(held) == {pattern()}


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2"])
@pytest.mark.parametrize("granted", [0, 1, 4])
def test_a_wake_that_fails_leaves_nothing_mapped_and_may_come_again(driver: Driver, call: str, granted: int) -> None:
    held = blocks()
    weights = ParkedWeights(held)
    weights.park()
    driver.refused[call] = granted
    with pytest.raises(LoadFailed):
        weights.wake(largest=GRAIN)
    assert (weights.parked, driver.mapped) == (True, {})
    driver.refused.clear()
    weights.wake()
    assert data(held) == {pattern()}


def test_a_host_without_memory_leaves_the_weights_where_they_are(driver: Driver) -> None:
    driver.refused.update({"cuMemHostRegister_v2": 0, "cuMemHostAlloc": 1})
    held = blocks()
    weights = ParkedWeights(held)
    with pytest.raises(LoadFailed):
        weights.park()
    assert (weights.parked, weights.host_bytes, data(held)) == (False, 0, {pattern()})
    assert not driver.allocated


def test_weights_that_nobody_has_any_more_leave_nothing_behind(driver: Driver) -> None:
    held = blocks()
    weights = ParkedWeights(held)
    weights.park()
    weights.wake()
    del held, weights
    assert (driver.mapped, driver.registered) == ({}, set())
