"""How a range of device memory is cut into pieces that are copied one after the other."""

import pytest

from pilotlight_predictor.gpu.remappable_memory import CHUNK_BYTES, chunks

GRAIN = 2 << 20


@pytest.mark.parametrize(
    "size", [GRAIN, CHUNK_BYTES - GRAIN, CHUNK_BYTES, CHUNK_BYTES + GRAIN, 33 * CHUNK_BYTES + 7 * GRAIN]
)
def test_pieces_follow_each_other_and_are_all_of_the_range(size: int) -> None:
    found = chunks(size)
    ends = [begin + length for begin, length in found]
    assert [begin for begin, _ in found] == [0, *ends[:-1]]
    assert ends[-1] == size


def test_only_the_last_piece_is_smaller_than_the_others() -> None:
    assert chunks(10, 4) == [(0, 4), (4, 4), (8, 2)]


def test_each_piece_is_whole_grains_of_the_driver() -> None:
    assert all(length % GRAIN == 0 and begin % GRAIN == 0 for begin, length in chunks(5 * CHUNK_BYTES + 3 * GRAIN))
