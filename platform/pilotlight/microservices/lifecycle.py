"""Microservices from start to stop: what a client asked for is written down first, then done in threads, then noted.

A start is answered at once and goes on here; what runs is looked at again after a restart of this process. For each
job one thing happens at a time, so that a stop during a start waits for it and then takes it back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from pilotlight.errors import NotFound, PlatformError, Throttled
from pilotlight.microservices import starting, workspaces
from pilotlight.microservices.calling import AskingFailed
from pilotlight.microservices.directory import Directory
from pilotlight.microservices.media.limits import limits_from
from pilotlight.microservices.model import Entry, Seen
from pilotlight.microservices.platforms import Platform, platform
from pilotlight.microservices.records import LIVING, THERE, JobRecord
from pilotlight.microservices.registry import registry
from pilotlight.microservices.secrets import redacted
from pilotlight.microservices.starting import Wish
from pilotlight.microservices.ways import Ways, not_there
from pilotlight.microservices.wishes import Place, known_options, options_of
from pilotlight.targets.local.chronicle import utc

T = TypeVar("T")

THREADS: Final = 16  # platforms are programs and clusters: whoever asks them waits
STARTS: Final = 16  # threads of their own, since an image may be pulled for an hour; and as many for stops
STARTS_OF_AN_ORG: Final = 4  # at once: its further ones wait, and nobody else's behind them
ASKERS: Final = 64  # each waits for a model's answer
WAITING: Final = 256  # more than that are told to come again, instead of a longer line

log = logging.getLogger("pilotlight.microservices")


class Lifecycle:
    """Used from one event loop; the directory too."""

    def __init__(self, directory: Directory, place: Place, now: Callable[[], str] = utc) -> None:
        self.directory = directory
        self.place = place
        self._now = now
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="microservices")
        self._starts = ThreadPoolExecutor(STARTS, thread_name_prefix="starts")
        self._stops = ThreadPoolExecutor(STARTS, thread_name_prefix="stops")
        self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="inference")
        self._lanes: dict[str, asyncio.Semaphore] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._asking = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._doing: dict[str, str] = {}
        self._platforms: dict[str, Platform] = {}
        self._ways = Ways(self._platform, self._blocking)

    def start(self, record: JobRecord, wish: Wish, secret: Mapping[str, str]) -> None:
        """Returns at once; how it went is in the record. `secret` has values, which only the process itself gets."""
        self._go(self._start(record, wish, secret))

    async def _start(self, record: JobRecord, wish: Wish, secret: Mapping[str, str]) -> None:
        lane = self._lanes.setdefault(record.org, asyncio.Semaphore(STARTS_OF_AN_ORG))
        async with lane, self._turn(record.id, "its start"):
            if self._gone(record):
                return
            try:
                entry = await self._blocking(self._started, record, wish, secret, pool=self._starts)
            except PlatformError as error:
                text = f"{error}; {error.hint}" if error.hint else str(error)
                self._note(record, status="error", message=redacted(text, secret, tuple(secret)))
                log.warning("microservice %s of %s did not start", record.id, record.org)
            except Exception:
                log.exception("microservice %s could not be started", record.id)
                self._note(record, status="error", message="the platform failed; the log of the API has the reason")
            else:
                self._note(record, status="running", entry=entry, platform=wish.platform)
                log.info("microservice %s of %s started on %s", record.id, record.org, wish.platform)

    def _started(self, record: JobRecord, wish: Wish, secret: Mapping[str, str]) -> Entry:
        workspaces.check_stores(wish.model_path, wish.env, limits_from(self.place.environ))
        environ = {**self.place.environ, **secret}
        at = platform(wish.platform, environ)
        values, missing = starting.options(at.options, known_options(at, wish.options), environ)
        starting.refuse_missing(missing, at.name)
        job = starting.job(replace(wish, options=values), environ, record.id)
        return starting.start(job, at, registry(self.place.environ))

    def _platform(self, name: str) -> Platform:
        """One for all looks: to connect to a cluster costs more than to ask it."""
        if name not in self._platforms:
            self._platforms[name] = platform(name, self.place.environ)
        return self._platforms[name]

    async def stop(self, record: JobRecord) -> None:
        """Returns once nothing of it is left. Two at once are one; whoever comes later finds it stopped."""
        already = self.directory.job(record.org, record.id).status
        if already not in THERE:
            raise not_there(record.id)
        if already != "stopping":
            self._note(record, status="stopping", message="")  # why a start failed is no reason against its stop
        async with self._turn(record.id, "its stop"):
            kept = self.directory.job(record.org, record.id)
            if kept.status == "stopped":
                return
            await self._ways.forget(record.id)
            entry = kept.entry or self._left(kept.id)
            if entry is not None:
                await self._ended_there(kept, entry)
            self._note(kept, status="stopped", message="")
            log.info("microservice %s of %s stopped", record.id, record.org)

    async def _ended_there(self, record: JobRecord, entry: Entry) -> None:
        """What its platform says against it is kept, for a status to tell."""
        try:
            await self._blocking(self._stopped, record, entry, pool=self._stops)
        except PlatformError as error:
            self._note(record, message=f"it could not be stopped: {error}")
            raise

    def _left(self, job_id: str) -> Entry | None:
        """Of a start that failed, where what it had made could not be ended either."""
        return registry(self.place.environ).read().entries.get(job_id)

    def _stopped(self, record: JobRecord, entry: Entry) -> None:
        self._platform(record.platform or entry.platform).stop(record.id, entry)
        registry(self.place.environ).remove(record.id)

    def operations(self, job_id: str) -> tuple[str, ...]:
        """What goes on for it at the moment."""
        return (self._doing[job_id],) if job_id in self._doing else ()

    async def look(self, record: JobRecord) -> Seen | None:
        """None: its platform has not been asked to start it yet."""
        if record.entry is None:
            return None
        return await self._blocking(self._seen, record, record.entry)

    def _seen(self, record: JobRecord, entry: Entry) -> Seen:
        return self._platform(record.platform).look(record.id, entry)

    async def ask(self, record: JobRecord, question: Callable[[str], T]) -> T:
        """Asked in a thread, over the way that is there; one on which nobody answered is not gone twice."""
        if self._asking >= WAITING:
            raise Throttled(f"{WAITING} requests wait for their answers already; ask again", retry_after_s=1)
        url = await self.way(record)
        self._asking += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._askers, question, url)
        except AskingFailed as error:
            if not error.status:
                await self.forget_way(record.id)
            raise
        finally:
            self._asking -= 1

    async def way(self, record: JobRecord) -> str:
        return await self._ways.to(record)

    async def forget_way(self, job_id: str) -> None:
        await self._ways.forget(job_id)

    def take_up(self, wish_of: Callable[[JobRecord], tuple[Wish, Mapping[str, str]]]) -> None:
        """After a restart: a start or a stop that was under way is done again, what runs is left as it is."""
        for record in self.directory.of_kind("inference_microservice", "stopping"):
            self._go(self._finish_stop(record))
        for record in self.directory.of_kind("inference_microservice", "pending"):
            self._go(self._start_again(record, wish_of))

    async def _finish_stop(self, record: JobRecord) -> None:
        with suppress(PlatformError):
            await self._sweep(record)
        await self._ended(record)

    async def _start_again(
        self, record: JobRecord, wish_of: Callable[[JobRecord], tuple[Wish, Mapping[str, str]]]
    ) -> None:
        try:
            wish, secret = wish_of(record)
        except PlatformError as error:
            self._note(record, status="error", message=str(error))
            return
        with suppress(PlatformError):
            await self._sweep(record)
        await self._start(record, wish, secret)

    async def _sweep(self, record: JobRecord) -> None:
        """What an earlier process may have started without writing down where: its id is the name of what runs."""
        if record.entry is None:
            await self._blocking(self._swept, record, pool=self._stops)

    def _swept(self, record: JobRecord) -> None:
        at = self._platform(record.platform)
        given = known_options(at, options_of(self.place, record.org))
        values, _ = starting.options(at.options, given, self.place.environ)
        self._stopped(record, self._left(record.id) or starting.begun(at.name, values))

    async def stop_all(self) -> None:
        """With the platform ends what it runs."""
        living = self.directory.of_kind("inference_microservice", *THERE)
        await asyncio.gather(*(self._ended(record) for record in living))

    async def _ended(self, record: JobRecord) -> None:
        try:
            await self.stop(record)
        except PlatformError as error:
            log.warning("microservice %s could not be stopped: %s", record.id, error)

    async def close(self) -> None:
        """What was begun is finished, within the patience of whoever ends this process; microservices go on."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=10)
            for task in late:  # its record says what is to be taken up again
                task.cancel()
        await self._ways.close()
        for pool in (self._threads, self._starts, self._stops, self._askers):
            pool.shutdown(wait=False, cancel_futures=True)

    def _gone(self, record: JobRecord) -> bool:
        try:
            return self.directory.job(record.org, record.id).status not in LIVING
        except NotFound:
            return True

    def _note(self, record: JobRecord, **changes: Any) -> None:
        """A stop that was asked for meanwhile stands."""
        kept = self.directory.job(record.org, record.id)
        if kept.status == "stopping" and changes.get("status") != "stopped":
            changes = {name: value for name, value in changes.items() if name != "status"}
        self.directory.update_job(record.org, record.id, self._now(), **changes)

    @asynccontextmanager
    async def _turn(self, job_id: str, what: str) -> AsyncIterator[None]:
        """One thing at a time for each job."""
        async with self._turns.setdefault(job_id, asyncio.Lock()):
            self._doing[job_id] = what
            try:
                yield
            finally:
                self._doing.pop(job_id, None)

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _blocking(self, call: Callable[..., T], *given: Any, pool: ThreadPoolExecutor | None = None) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool or self._threads, call, *given)
