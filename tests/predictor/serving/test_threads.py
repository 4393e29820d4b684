"""Blocking work beside the event loop: what becomes of its result when nobody waits for it any more."""

import asyncio
import threading

from tests.predictor.scheduling.instances import PATIENCE_S, until

from pilotlight_predictor.threads import in_thread


def test_a_result_that_was_waited_for_is_not_freed() -> None:
    async def scene() -> None:
        freed: list[str] = []
        assert await in_thread(lambda: "instances", freed.append) == "instances"
        assert freed == []

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
        await until(lambda: freed)
        assert freed == [("instances", False)]

    asyncio.run(scene())


def test_a_result_that_comes_after_the_loop_has_closed_is_freed() -> None:
    gate, freed = threading.Event(), threading.Event()

    async def scene() -> None:
        in_thread(lambda: gate.wait(PATIENCE_S), lambda late: freed.set())

    asyncio.run(scene())
    gate.set()
    assert freed.wait(PATIENCE_S)
