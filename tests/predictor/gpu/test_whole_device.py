"""Nobody waits for all of a device while somebody captures a graph on it: that would break the capture."""

import ctypes
from threading import Event, Thread

import pytest
from tests.predictor.gpu.driver import Driver

from pilotlight_predictor.gpu.cuda_driver import DEVICE_SYNC_LOCK, Context
from pilotlight_predictor.gpu.parked_weights import ParkedWeights
from pilotlight_predictor.gpu.safetensors_upload import Block

SIZE = 5000
PATIENCE_S = 60.0


def parked() -> None:
    block = Block.allocate(Context(0), SIZE, parks=True)
    ctypes.memset(block.pointer, 1, SIZE)
    ParkedWeights([block]).park()


@pytest.mark.parametrize("work", [lambda: Context(0).synchronize(), parked], ids=["settle", "park"])
def test_who_waits_for_the_whole_device_does_so_after_a_capture(driver: Driver, work: object) -> None:
    begun, done = Event(), Event()

    def run() -> None:
        assert callable(work)
        begun.set()
        work()
        done.set()

    with DEVICE_SYNC_LOCK:
        Thread(target=run, daemon=True).start()
        assert begun.wait(PATIENCE_S)
        assert not done.wait(0.2)
        assert "cuCtxSynchronize" not in driver.called
    assert done.wait(PATIENCE_S)
    assert "cuCtxSynchronize" in driver.called


def test_weights_that_whoever_captures_drops_do_not_wait_for_themselves(driver: Driver) -> None:
    with DEVICE_SYNC_LOCK:
        del_me = Block.allocate(Context(0), SIZE, parks=True)
        del del_me
    assert not driver.mapped
