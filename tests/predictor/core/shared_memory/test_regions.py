"""Regions without a server: what stays valid when they are unregistered."""

from pathlib import Path

import numpy as np
import pytest

from pilotlight_predictor.core.requests import SharedMemorySlice
from pilotlight_predictor.core.shared_memory import SharedMemory
from pilotlight_predictor.errors import BadRequest, NotFound

PLACE = SharedMemorySlice("r", 8, 16)


@pytest.fixture
def regions(tmp_path: Path) -> SharedMemory:
    (tmp_path / "object").write_bytes(bytes(range(64)))
    made = SharedMemory(True, tmp_path)
    made.register("r", "/object", 4, 32)
    return made


def test_offsets_add_up(regions: SharedMemory) -> None:
    assert bytes(regions.find(PLACE)) == bytes(range(12, 28))


def test_who_computes_with_a_region_finishes_though_it_is_unregistered(regions: SharedMemory, tmp_path: Path) -> None:
    array = np.frombuffer(regions.find(PLACE), np.uint8)
    target = regions.find(PLACE)
    regions.unregister()
    (tmp_path / "object").rename(tmp_path / "another")
    with pytest.raises(NotFound):
        regions.find(PLACE)
    assert array.tolist() == list(range(12, 28))
    target[:1] = b"!"
    assert (tmp_path / "another").read_bytes()[12:13] == b"!"


def test_what_was_cut_off_is_not_read(regions: SharedMemory, tmp_path: Path) -> None:
    with (tmp_path / "object").open("r+b") as file:
        file.truncate(20)
    with pytest.raises(BadRequest, match="shrank after it was registered"):
        regions.find(PLACE)
