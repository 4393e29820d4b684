"""The thread that looks after canaries lives as long as whoever serves."""

import asyncio
import threading

from pilotlight.canaries.controller import WakeEvent, controller_thread


def test_the_loop_is_woken_by_the_bell_and_ends_with_the_block() -> None:
    bell, looks, woken = WakeEvent(notified=True), list[str](), threading.Event()

    def follow() -> None:
        while bell.wait(None):
            looks.append(threading.current_thread().name)
            woken.set()

    async def serve() -> None:
        async with controller_thread(bell, follow):
            bell.wake()
            assert await asyncio.to_thread(woken.wait, 60)
        assert "canaries" not in {each.name for each in threading.enumerate()}

    asyncio.run(serve())
    assert looks == ["canaries"]
