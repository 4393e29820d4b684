"""Blocking work beside the event loop: what becomes of its result when nobody waits for it any more."""

import asyncio
import gc
import threading
import weakref
from functools import partial
from resource import RUSAGE_THREAD, getrusage

import pytest
from tests.eventually import eventually_async
from tests.predictor.scheduling.instances import PATIENCE_S

from pilotlight_predictor.core.threads import ThreadLimiter, in_thread, with_deep_stack

DEPTH, CALLS = 300, 500


def test_a_result_that_was_waited_for_is_not_freed() -> None:
    async def scene() -> None:
        freed: list[str] = []
        assert await in_thread(lambda: "instances", freed.append) == "instances"
        assert freed == []

    asyncio.run(scene())


def faults_of_calls_at_every_depth() -> int:
    """Pages that this thread had to be given: each piece of memory that is mapped again costs one."""

    def leaf() -> None: ...

    def descend(depth: int) -> None:
        for _ in range(CALLS):
            leaf()
        if depth:
            descend(depth - 1)

    before = getrusage(RUSAGE_THREAD).ru_minflt
    descend(DEPTH)
    return getrusage(RUSAGE_THREAD).ru_minflt - before


def test_calls_of_a_thread_with_room_map_no_memory_again_and_again() -> None:
    async def scene() -> int:
        return await in_thread(partial(with_deep_stack, faults_of_calls_at_every_depth))

    assert asyncio.run(scene()) < CALLS


class InHand:
    """Something large that the work was given, or had when it failed."""


def test_what_failed_work_was_given_and_had_in_hand_is_freed_with_it() -> None:
    held: list[weakref.ref[InHand]] = []

    def work(given: InHand) -> None:
        large = InHand()
        held.extend(map(weakref.ref, (given, large)))
        raise ValueError

    async def scene() -> None:
        with pytest.raises(ValueError):
            await in_thread(partial(work, InHand()))
        await eventually_async(lambda: [ref() for ref in held] == [None, None])

    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()


def test_a_few_run_at_a_time_and_the_rest_wait_their_turn() -> None:
    async def scene() -> None:
        few, go, running = ThreadLimiter(2), threading.Event(), list[int]()

        def work(number: int) -> int:
            running.append(number)
            go.wait(PATIENCE_S)
            return number

        waiting = [asyncio.ensure_future(few.run(partial(work, number))) for number in range(5)]
        await eventually_async(lambda: len(running) == 2)
        assert running == [0, 1]
        go.set()
        assert await asyncio.gather(*waiting) == [0, 1, 2, 3, 4]

    asyncio.run(scene())


def test_a_result_that_comes_just_as_the_future_is_given_up_is_freed_off_the_loop() -> None:
    async def scene() -> None:
        freed: list[tuple[str, bool]] = []
        on_loop = threading.get_ident()
        ended = threading.Event()

        def work() -> str:
            ended.set()
            return "instances"

        future = in_thread(work, lambda late: freed.append((late, threading.get_ident() == on_loop)))
        assert ended.wait(PATIENCE_S)
        future.cancel()
        await eventually_async(lambda: freed)
        assert freed == [("instances", False)]

    asyncio.run(scene())


def test_a_result_that_comes_after_the_loop_has_closed_is_freed() -> None:
    gate, freed = threading.Event(), threading.Event()

    async def scene() -> None:
        in_thread(lambda: gate.wait(PATIENCE_S), lambda late: freed.set())

    asyncio.run(scene())
    gate.set()
    assert freed.wait(PATIENCE_S)
