"""What stands behind the services of the API: the engine of this process, or any target asked in threads.

Handlers know neither: they await a `Backing`. The engine answers at once; a target, such as a cluster, blocks, and a
thread of a small pool waits for it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from msgspec.structs import replace

from pilotlight.api import log_files
from pilotlight.api.log_files import LogLine, Wanted
from pilotlight.errors import PlatformError
from pilotlight.targets.target import Event, KeptCanary, Key, Release, Sample, ServiceStatus, Share, Target, Way

if TYPE_CHECKING:
    from pilotlight.targets.local.engine import Engine

T = TypeVar("T")
Json = Any
Batch = Sequence[LogLine] | PlatformError | None  # None: the end

THREADS: Final = 16
REMEMBERED: Final = 10_000  # events of a target that were given a number
SILENCE_S: Final = 5.0


class Backing(Protocol):
    poll_s: float  # how often it is worth looking for more

    async def statuses(self, namespace: str | None) -> Sequence[ServiceStatus]: ...
    async def status(self, key: Key) -> ServiceStatus: ...
    async def apply(self, release: Release, *, reset: bool, dry_run: bool) -> ServiceStatus: ...
    async def delete(self, key: Key) -> None: ...
    async def live(self, key: Key) -> Sequence[Mapping[str, Json]]: ...
    async def releases(self, key: Key) -> Sequence[Release]: ...
    async def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus: ...
    async def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus: ...
    async def events(self, key: Key | None, after: int, limit: int) -> Sequence[Event]: ...
    async def canaries(self, namespace: str | None) -> Sequence[KeptCanary]: ...
    async def canary(self, key: Key) -> KeptCanary | None: ...
    async def keep_canary(self, key: Key, state: str, version: str) -> KeptCanary: ...
    async def query(self, promql: str) -> Sequence[Sample]: ...
    def way(self, status: ServiceStatus) -> AbstractAsyncContextManager[Way]:
        """Held while requests are sent to the service."""

    async def logs(self, key: Key, wanted: Wanted, again: log_files.Again) -> AsyncIterator[Sequence[LogLine]]:
        """Its errors come before the first batch is asked for."""


class EngineBacking:
    """In the control process of the embedded platform, whose event loop is the engine's own."""

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
        """Who hears of it gets no more answers from the service."""
        self._engine.delete(key)
        await self._engine.confirmed()

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

    async def canaries(self, namespace: str | None) -> Sequence[KeptCanary]:
        return self._engine.canaries.kept(namespace)

    async def canary(self, key: Key) -> KeptCanary | None:
        return self._engine.canaries.of(key)

    async def keep_canary(self, key: Key, state: str, version: str) -> KeptCanary:
        return self._engine.canaries.keep(key, state, version)

    async def query(self, promql: str) -> Sequence[Sample]:
        return await self._engine.query(promql)

    def way(self, status: ServiceStatus) -> AbstractAsyncContextManager[Way]:
        return nullcontext(Way(status.url))

    async def logs(self, key: Key, wanted: Wanted, again: log_files.Again) -> AsyncIterator[Sequence[LogLine]]:
        return log_files.lines(lambda previous: self._engine.log_files(key, "", previous), wanted, again)


class TargetBacking:
    """Any target. Its calls block, so each waits in a thread of its own pool."""

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
        found = await self._blocking(lambda: list(self._target.events(key, follow=False)))
        numbered = [self._numbered(event) for event in found]
        newer = sorted((event for event in numbered if event.number > after), key=lambda event: event.number)
        return newer[:limit] if after else newer[-limit:]

    def _numbered(self, event: Event) -> Event:
        """A cluster's events have no order to go on from: each gets the number in which it was first seen."""
        known = replace(event, number=0)
        if known not in self._numbers:
            self._last = max(self._last + 1, event.number)
            self._numbers[known] = event.number or self._last
        if len(self._numbers) > REMEMBERED:
            self._numbers.pop(next(iter(self._numbers)))
        return replace(event, number=self._numbers[known])

    async def canaries(self, namespace: str | None) -> Sequence[KeptCanary]:
        return await self._blocking(lambda: self._target.canaries(namespace))

    async def canary(self, key: Key) -> KeptCanary | None:
        return await self._blocking(lambda: self._target.canary(key))

    async def keep_canary(self, key: Key, state: str, version: str) -> KeptCanary:
        return await self._blocking(lambda: self._target.keep_canary(key, state, version))

    async def query(self, promql: str) -> Sequence[Sample]:
        return await self._blocking(lambda: self._target.query(promql))

    @asynccontextmanager
    async def way(self, status: ServiceStatus) -> AsyncIterator[Way]:
        held = self._target.way(status)
        way = await self._blocking(held.__enter__)
        try:
            yield way
        finally:
            await self._blocking(lambda: held.__exit__(None, None, None))

    async def logs(self, key: Key, wanted: Wanted, again: log_files.Again) -> AsyncIterator[Sequence[LogLine]]:
        """A target's own lines; where several replicas write, headings among them say which."""
        found = await self._blocking(
            lambda: self._target.logs(
                key, follow=wanted.follow, previous=wanted.previous, replica=wanted.replica, tail=wanted.tail
            )
        )
        return _pumped(found, wanted.replica)

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


async def _pumped(found: Iterator[str], replica: str) -> AsyncIterator[Sequence[LogLine]]:
    """By a thread that ends with the process: a log that is followed may say nothing for hours."""
    loop, lines, gone = asyncio.get_running_loop(), asyncio.Queue[Batch](), threading.Event()

    def tell(what: Batch) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lines.put_nowait, what)

    def pump() -> None:
        try:
            for line in found:
                tell([LogLine(replica, line)])
                if gone.is_set():
                    return
            tell(None)
        except PlatformError as error:
            tell(error)

    threading.Thread(target=pump, name="logs", daemon=True).start()
    try:
        while (batch := await _next(lines)) is not None:
            if isinstance(batch, PlatformError):
                raise batch
            yield batch
    finally:
        gone.set()


async def _next(lines: "asyncio.Queue[Batch]") -> "Batch":
    """Nothing after a while without any, so that whoever writes them on notices a reader who is gone."""
    try:
        return await asyncio.wait_for(lines.get(), SILENCE_S)
    except TimeoutError:
        return []
