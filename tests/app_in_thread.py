"""An aiohttp application in a thread of its own, for tests that call it with blocking clients."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def in_thread(app: web.Application) -> Iterator[str]:
    """Serve on a free port of loopback; the URL."""
    loop, ready, urls = asyncio.new_event_loop(), threading.Event(), list[str]()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runner

    def run() -> None:
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(30), "the application did not start"
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
