"""Blocks of shared memory: none overlaps another, and what was freed is whole again."""

from hypothesis import given
from hypothesis import strategies as st

from pilotlight_predictor.fronts.arena import ALIGNMENT, Arena

STEPS = st.lists(st.one_of(st.integers(1, 500), st.integers(-40, -1)), max_size=120)


@given(STEPS)
def test_blocks_in_use_never_overlap_and_lie_within_the_memory(steps: list[int]) -> None:
    arena, used = Arena(20 * ALIGNMENT), dict[int, int]()
    for step in steps:
        if step > 0:
            offset = arena.allocate(step)
            if offset is not None:
                used[offset] = step
        elif used:
            offset = sorted(used)[-step % len(used)]
            arena.release(offset)
            del used[offset]
        ends = [0]
        for start, size in sorted(used.items()):
            assert start >= ends[-1]
            assert start % ALIGNMENT == 0
            ends.append(start + size)
        assert ends[-1] <= arena.size


@given(st.lists(st.integers(1, 5 * ALIGNMENT), min_size=1, max_size=30), st.randoms())
def test_all_of_the_memory_can_be_had_again_in_whatever_order_it_was_freed(sizes: list[int], random: "object") -> None:
    arena = Arena(20 * ALIGNMENT)
    offsets = [offset for size in sizes if (offset := arena.allocate(size)) is not None]
    random.shuffle(offsets)  # type: ignore[attr-defined]
    for offset in offsets:
        arena.release(offset)
    assert arena.allocate(arena.size) == 0


def test_a_block_that_does_not_fit_is_refused_until_another_is_freed() -> None:
    arena = Arena(4 * ALIGNMENT)
    first = arena.allocate(3 * ALIGNMENT)
    assert arena.allocate(2 * ALIGNMENT) is None
    assert first is not None
    arena.release(first)
    assert arena.allocate(2 * ALIGNMENT) == 0
