"""Delayed calls: one for each item, at the earliest time that was requested, on any event loop."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop
from tests.eventually import eventually_async

from pilotlight.targets.local.delayed_queue import DelayedQueue


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_item_is_handled_once_at_its_earliest_time_even_if_that_is_past(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A handle of uvloop has no time if the call is due already."""
    handled: list[str] = []

    async def play() -> None:
        queue = DelayedQueue(handled.append)
        for seconds in (-1.0, 600.0, -1.0):
            queue.add_after(seconds, "a")
        queue.add_after(600.0, "b")
        await eventually_async(lambda: bool(handled), "the item that is due")
        await asyncio.sleep(0.05)
        queue.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play())
    assert handled == ["a"]
