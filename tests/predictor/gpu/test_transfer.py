"""Weights on their way from files to a device: all of them arrive, by either way, or the reason is told."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.predictor.gpu.driver import Driver

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.gpu.safetensors_upload import BUFFER_BYTES, WeightTransfer


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """More than a ring of two threads holds at once, and no whole number of pieces."""
    values = np.random.default_rng(1).integers(0, 256, 5 * BUFFER_BYTES + 12345, np.uint8)
    save_file({"w": values}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("beside_import", [True, False], ids=["long copies", "ring"])
@pytest.mark.parametrize("parks", [True, False])
def test_every_byte_arrives_in_its_place(driver: Driver, weights: Path, beside_import: bool, parks: bool) -> None:
    ((block, places),) = WeightTransfer(weights, 0, beside_import, parks).start().wait()
    sent = weights.read_bytes()[-block.size :]
    assert ctypes.string_at(block.pointer, block.size) == sent
    assert list(places) == ["w"]
    assert not driver.registered, "the ring's buffers are given back"
    del block
    assert (driver.allocated, driver.mapped) == ({}, {})


def test_a_device_that_refuses_is_told_and_keeps_nothing(driver: Driver, weights: Path) -> None:
    driver.refused["cuMemcpyHtoDAsync_v2"] = 3
    moving = WeightTransfer(weights, 0, during_import=False).start()
    with pytest.raises(LoadFailed, match="out of memory"):
        moving.wait()
    del moving
    assert (driver.registered, driver.allocated) == (set(), {})
