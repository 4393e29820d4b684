"""Pinned memory: huge pages of ours where they pay, the driver's own elsewhere, and nothing of either left behind."""

import ctypes
import os
from collections.abc import Callable

import pytest
from tests.predictor.gpu.driver import Driver

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.cuda_driver import PINNED_BYTES, Context, SharedMemory
from pilotlight_predictor.gpu.safetensors_upload import MIN_BYTES_PER_THREAD, PinnedBuffer, PinnedMemory

LARGE = 5 << 20


@pytest.mark.parametrize("size", [LARGE, 2 * MIN_BYTES_PER_THREAD + 4096], ids=["by one thread", "by several"])
def test_a_large_piece_is_memory_of_ours_that_the_driver_pins(driver: Driver, size: int) -> None:
    copy = PinnedMemory(Context(0), size)
    assert driver.registered == {copy.address}
    assert ctypes.string_at(copy.address, size) == bytes(size)
    del copy
    assert not driver.registered


def test_a_small_piece_is_the_drivers_own(driver: Driver) -> None:
    copy = PinnedMemory(Context(0), 4096)
    assert (list(driver.allocated), driver.registered) == ([copy.address], set())
    del copy
    assert not driver.allocated


def test_a_driver_that_does_not_pin_ours_gives_its_own(driver: Driver) -> None:
    driver.refused["cuMemHostRegister_v2"] = 0
    copy = PinnedMemory(Context(0), LARGE)
    assert list(driver.allocated) == [copy.address]
    del copy
    assert not driver.allocated


@pytest.mark.parametrize("size", [LARGE, 4096])
def test_what_is_written_to_a_buffer_is_sent_and_a_closed_one_leaves_nothing(driver: Driver, size: int) -> None:
    place = ctypes.create_string_buffer(size)
    with PinnedBuffer(Context(0), size) as buffer:
        buffer.memory[:5] = b"hello"
        buffer.send(ctypes.addressof(place), size)
    assert place.raw[:5] == b"hello"
    assert (driver.registered, driver.allocated) == (set(), {})


def test_a_buffer_that_gets_no_stream_leaves_nothing(driver: Driver) -> None:
    driver.refused["cuStreamCreate"] = 0
    with pytest.raises(LoadFailed):
        PinnedBuffer(Context(0), LARGE)
    assert not driver.registered


@pytest.fixture
def shared() -> Callable[[int], SharedMemory]:
    def make(size: int) -> SharedMemory:
        descriptor = os.memfd_create("shared")
        os.truncate(descriptor, size)
        try:
            return SharedMemory(descriptor, 0)
        finally:
            os.close(descriptor)

    return make


def test_the_first_bytes_of_shared_memory_are_pinned_once_until_nothing_reads_them(
    driver: Driver, shared: Callable[[int], SharedMemory]
) -> None:
    memory, context = shared(2 * PINNED_BYTES), Context(0)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert memory.pinned(start, 4096, context)
    assert memory.pinned(start + PINNED_BYTES - 64, 64, context)
    assert not memory.pinned(start + PINNED_BYTES - 64, 65, context)
    assert driver.called.count("cuMemHostRegister_v2") == 1
    reader = memoryview(memory).toreadonly()[:64]
    del memory
    assert driver.registered == {start}
    del reader
    assert not driver.registered


def test_shared_memory_that_the_driver_does_not_pin_stays_as_it_is(
    driver: Driver, shared: Callable[[int], SharedMemory]
) -> None:
    driver.refused["cuMemHostRegister_v2"] = 0
    memory = shared(4096)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert [memory.pinned(start, 64, Context(0)) for _ in range(2)] == [False, False]
    del memory
    assert driver.called.count("cuMemHostRegister_v2") == 1
    assert "cuMemHostUnregister" not in driver.called
