"""What stands behind: engine or any target; application keys.

Backends of the API: the engine of this process, or any target called in threads.

Handlers await a `ServiceBackend`. The engine returns without blocking; calls to a target, such as a cluster, block and
run in a small thread pool.

Typed application keys that handlers read.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from aiohttp import web
from msgspec.structs import replace

from pilotlight.api import log_files
from pilotlight.api.log_files import LogLine, LogQuery
from pilotlight.api.routing import Area, Authorizer
from pilotlight.errors import PlatformError
from pilotlight.targets.target import (
    CanaryRecord,
    Event,
    Key,
    Release,
    Sample,
    ServiceRoute,
    ServiceStatus,
    Share,
    Target,
)

if TYPE_CHECKING:
    from pilotlight.targets.local.control.engine import Engine

T = TypeVar("T")
Json = Any
Batch = Sequence[LogLine] | PlatformError | None  # None: end of the log

THREADS: Final = 16
MAX_NUMBERED_EVENTS: Final = 10_000
IDLE_BATCH_S: Final = 5.0


class ServiceBackend(Protocol):
    poll_s: float  # interval at which streams poll for more

    async def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]: ...
    async def status(self, key: Key) -> ServiceStatus: ...
    async def apply(self, release: Release, *, reset: bool, dry_run: bool) -> ServiceStatus: ...
    async def delete(self, key: Key) -> None: ...
    async def live(self, key: Key) -> Sequence[Mapping[str, Json]]: ...
    async def releases(self, key: Key) -> Sequence[Release]: ...
    async def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus: ...
    async def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus: ...
    async def events(self, key: Key | None, after: int, limit: int) -> Sequence[Event]: ...
    async def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]: ...
    async def canary(self, key: Key) -> CanaryRecord | None: ...
    async def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord: ...
    async def query(self, promql: str) -> Sequence[Sample]: ...
    def open_route(self, status: ServiceStatus) -> AbstractAsyncContextManager[ServiceRoute]:
        """Open a route to the service, valid inside the context."""

    async def logs(
        self, key: Key, query: LogQuery, wait_for_more: log_files.WaitForMore
    ) -> AsyncIterator[Sequence[LogLine]]:
        """Return batches of log lines. Errors are raised here, before the first batch."""


class EngineBackend:
    """Backend of the embedded platform: the engine, on the same event loop."""

    poll_s = 0.1

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    async def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return self._engine.statuses(namespace)

    async def status(self, key: Key) -> ServiceStatus:
        return self._engine.status(key)

    async def apply(self, release: Release, *, reset: bool, dry_run: bool) -> ServiceStatus:
        return self._engine.apply(release, reset=reset, dry_run=dry_run)

    async def delete(self, key: Key) -> None:
        """Delete a service and wait until the gateway has stopped routing to it."""
        self._engine.delete(key)
        await self._engine.wait_applied()

    async def live(self, key: Key) -> Sequence[Mapping[str, Json]]:
        return self._engine.live(key)

    async def releases(self, key: Key) -> Sequence[Release]:
        return self._engine.releases(key)

    async def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        return self._engine.scale(key, bounds)

    async def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        return self._engine.traffic(key, shares)

    async def events(self, key: Key | None, after: int, limit: int) -> Sequence[Event]:
        return self._engine.events(key, after, limit)

    async def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return self._engine.canaries.list(namespace)

    async def canary(self, key: Key) -> CanaryRecord | None:
        return self._engine.canaries.get(key)

    async def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        return self._engine.canaries.save(key, state, version)

    async def query(self, promql: str) -> Sequence[Sample]:
        return await self._engine.query(promql)

    def open_route(self, status: ServiceStatus) -> AbstractAsyncContextManager[ServiceRoute]:
        return nullcontext(ServiceRoute(status.url))

    async def logs(
        self, key: Key, query: LogQuery, wait_for_more: log_files.WaitForMore
    ) -> AsyncIterator[Sequence[LogLine]]:
        return log_files.stream_lines(lambda previous: self._engine.log_files(key, "", previous), query, wait_for_more)


class TargetBackend:
    """Backend over any target. Its calls block, so each runs in a thread pool."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.poll_s = max(target.poll_s, 1.0)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="target")
        self._numbers: dict[Event, int] = {}
        self._last = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]:
        return await self._blocking(lambda: self._target.list(namespace))

    async def status(self, key: Key) -> ServiceStatus:
        return await self._blocking(lambda: self._target.status(key))

    async def apply(self, release: Release, *, reset: bool, dry_run: bool) -> ServiceStatus:
        return await self._blocking(lambda: self._target.apply(release, reset=reset, dry_run=dry_run))

    async def delete(self, key: Key) -> None:
        await self._blocking(lambda: self._target.delete(key))

    async def live(self, key: Key) -> Sequence[Mapping[str, Json]]:
        return [manifest.document for manifest in await self._blocking(lambda: self._target.live(key))]

    async def releases(self, key: Key) -> Sequence[Release]:
        return await self._blocking(lambda: self._target.releases(key))

    async def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        return await self._blocking(lambda: self._target.scale(key, bounds))

    async def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        return await self._blocking(lambda: self._target.traffic(key, shares))

    async def events(self, key: Key | None, after: int, limit: int) -> Sequence[Event]:
        events = await self._blocking(lambda: list(self._target.events(key, follow=False)))
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

    async def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return await self._blocking(lambda: self._target.canaries(namespace))

    async def canary(self, key: Key) -> CanaryRecord | None:
        return await self._blocking(lambda: self._target.canary(key))

    async def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        return await self._blocking(lambda: self._target.save_canary(key, state, version))

    async def query(self, promql: str) -> Sequence[Sample]:
        return await self._blocking(lambda: self._target.query(promql))

    @asynccontextmanager
    async def open_route(self, status: ServiceStatus) -> AsyncIterator[ServiceRoute]:
        held = self._target.open_route(status)
        way = await self._blocking(held.__enter__)
        try:
            yield way
        finally:
            await self._blocking(lambda: held.__exit__(None, None, None))

    async def logs(
        self, key: Key, query: LogQuery, wait_for_more: log_files.WaitForMore
    ) -> AsyncIterator[Sequence[LogLine]]:
        """Return the target's own log lines; headings among them name the replica where there are several."""
        source = await self._blocking(
            lambda: self._target.logs(
                key, follow=query.follow, previous=query.previous, replica=query.replica, tail=query.tail
            )
        )
        return _stream_from_thread(source, query.replica)

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


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


BACKEND: "Final[web.AppKey[ServiceBackend]]" = web.AppKey("backend")
ENGINE: "Final[web.AppKey[Engine]]" = web.AppKey("engine")  # only in the control process of the embedded platform
TOKEN: Final = web.AppKey("token", str)
STOP: Final[web.AppKey[Callable[[float], None]]] = web.AppKey("stop")
SHUTTING_DOWN: Final = web.AppKey("shutting_down", asyncio.Event)
AUTHORIZERS: Final[web.AppKey[Mapping[Any, Authorizer]]] = web.AppKey("authorizers")  # by router resource
ALL_AREAS: Final[web.AppKey[tuple[Area, ...]]] = web.AppKey("areas")  # for the OpenAPI document
# returns the schemas of requests to models, by name, for the OpenAPI document
REQUEST_SCHEMAS: Final[web.AppKey[Callable[[], Mapping[str, Any]]]] = web.AppKey("request_schemas")
