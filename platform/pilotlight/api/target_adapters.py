"""Backends of the API: the engine of this process, or any target called in threads; and the application's keys.

Handlers pass the verbs of `ServiceVerbs` to `call`; the other methods are what the two backends do differently.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web
from msgspec.structs import replace

from pilotlight.api import log_files
from pilotlight.api.log_files import LogQuery
from pilotlight.api.route_types import Area, Authorizer
from pilotlight.errors import PlatformError
from pilotlight.targets.target import Event, Key, LogLine, Sample, ServiceRoute, ServiceStatus, ServiceVerbs, Target

if TYPE_CHECKING:
    from pilotlight.targets.local.control.service_operations import Engine

T = TypeVar("T")
Batch = Sequence[LogLine] | PlatformError | None  # None: end of the log

THREADS: Final = 16
MAX_NUMBERED_EVENTS: Final = 10_000
IDLE_BATCH_S: Final = 5.0

# Keys of the application, which handlers read.
BACKEND: "Final[web.AppKey[Backend]]" = web.AppKey("backend")
ENGINE: "Final[web.AppKey[Engine]]" = web.AppKey("engine")  # only in the control process of the embedded platform
TOKEN: Final = web.AppKey("token", str)
METRICS_TOKEN: Final = web.AppKey("metrics_token", str)  # for scrapes; empty: the admin's only; unset: no token
STOP: Final[web.AppKey[Callable[[float], None]]] = web.AppKey("stop")
SHUTTING_DOWN: Final = web.AppKey("shutting_down", asyncio.Event)
AUTHORIZERS: Final[web.AppKey[Mapping[Any, Authorizer]]] = web.AppKey("authorizers")  # by router resource
ALL_AREAS: Final[web.AppKey[tuple[Area, ...]]] = web.AppKey("areas")  # for the OpenAPI document
# returns the schemas of requests to models, by name, for the OpenAPI document
REQUEST_SCHEMAS: Final[web.AppKey[Callable[[], Mapping[str, Any]]]] = web.AppKey("request_schemas")


class EngineBackend:
    """Backend of the embedded platform: the engine, which returns without blocking, on the same event loop."""

    poll_s = 0.1  # interval at which streams poll for more

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    async def call(self, verb: Callable[[ServiceVerbs], T]) -> T:
        return verb(self._engine)

    async def delete(self, key: Key) -> None:
        """Delete a service and wait until the gateway has stopped routing to it."""
        self._engine.delete(key)
        await self._engine.wait_applied()

    async def query(self, promql: str) -> Sequence[Sample]:
        return await self._engine.query(promql)

    async def events(self, key: Key | None, after: int, limit: int) -> Sequence[Event]:
        """Return the first `limit` events after that number; after 0: the last ones."""
        return self._engine.events(key, after, limit)

    def open_route(self, status: ServiceStatus) -> AbstractAsyncContextManager[ServiceRoute]:
        return nullcontext(ServiceRoute(status.url))

    async def logs(
        self, key: Key, query: LogQuery, wait_for_more: log_files.WaitForMore
    ) -> AsyncIterator[Sequence[LogLine]]:
        """Return batches of log lines. Errors are raised here, before the first batch."""
        return log_files.stream_lines(partial(self._engine.log_files, key), query, wait_for_more)


class TargetBackend:
    """Backend over any target, such as a cluster. Its calls block, so each runs in a thread pool."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.poll_s = max(target.poll_s, 1.0)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="target")
        self._numbers: dict[Event, int] = {}
        self._last = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(self, verb: Callable[[Target], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, verb, self._target)

    async def delete(self, key: Key) -> None:
        await self.call(lambda target: target.delete(key))

    async def query(self, promql: str) -> Sequence[Sample]:
        return await self.call(lambda target: target.query(promql))

    async def events(self, key: Key | None, after: int, limit: int) -> Sequence[Event]:
        events = await self.call(lambda target: list(target.events(key, follow=False)))
        numbered = [self._numbered(event) for event in events]
        newer = sorted((event for event in numbered if event.number > after), key=lambda event: event.number)
        return newer[:limit] if after else newer[-limit:]

    def _numbered(self, event: Event) -> Event:
        """Return the event with a number. Events of a cluster have no order: they are numbered as first seen."""
        identity = replace(event, number=0)
        if identity not in self._numbers:
            self._last = max(self._last + 1, event.number)
            self._numbers[identity] = event.number or self._last
        if len(self._numbers) > MAX_NUMBERED_EVENTS:
            self._numbers.pop(next(iter(self._numbers)))
        return replace(event, number=self._numbers[identity])

    @asynccontextmanager
    async def open_route(self, status: ServiceStatus) -> AsyncIterator[ServiceRoute]:
        opened = self._target.open_route(status)
        route = await self.call(lambda _: opened.__enter__())
        try:
            yield route
        finally:
            await self.call(lambda _: opened.__exit__(None, None, None))

    async def logs(
        self, key: Key, query: LogQuery, wait_for_more: log_files.WaitForMore
    ) -> AsyncIterator[Sequence[LogLine]]:
        """Return the target's own log lines; headings among them name the replica where there are several."""
        source = await self.call(
            lambda target: target.logs(
                key, follow=query.follow, previous=query.previous, replica=query.replica, tail=query.tail
            )
        )
        return _stream_from_thread(source, query.replica)


Backend = EngineBackend | TargetBackend


async def _stream_from_thread(source: Iterator[str], replica: str) -> AsyncIterator[Sequence[LogLine]]:
    """Yield lines that a daemon thread reads: reading a followed log may block for hours, also during shutdown."""
    loop, lines, closed = asyncio.get_running_loop(), asyncio.Queue[Batch](), threading.Event()

    def put(batch: Batch) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lines.put_nowait, batch)

    def pump() -> None:
        try:
            for line in source:
                put([LogLine(replica, line)])
                if closed.is_set():
                    return
            put(None)
        except PlatformError as error:
            put(error)

    threading.Thread(target=pump, name="logs", daemon=True).start()
    try:
        while (batch := await _next_batch(lines)) is not None:
            if isinstance(batch, PlatformError):
                raise batch
            yield batch
    finally:
        closed.set()


async def _next_batch(lines: "asyncio.Queue[Batch]") -> "Batch":
    """Return the next batch, empty after IDLE_BATCH_S, so that the writer notices a disconnected client."""
    try:
        return await asyncio.wait_for(lines.get(), IDLE_BATCH_S)
    except TimeoutError:
        return []
