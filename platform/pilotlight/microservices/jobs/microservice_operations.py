"""Operations on microservices: requests are recorded in the org store, executed in threads, their results recorded.

A start runs in the background; unfinished operations are restored after a restart of this process. Operations of one
job are serialised: a stop during a start waits for it and then stops what it started.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from pilotlight.errors import NotFound, PlatformError, Throttled
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.inference.client import InferenceFailed
from pilotlight.microservices.jobs import launcher, org_resources
from pilotlight.microservices.jobs.launcher import StartRequest
from pilotlight.microservices.jobs.model_isolation import check_model
from pilotlight.microservices.jobs.start_request import PlatformSettings, platform_options
from pilotlight.microservices.jobs.target_service import TargetService
from pilotlight.microservices.media.limits import limits_from
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import ACTIVE, NOT_STOPPED, Entry, Job, JobRecord, PlatformStatus
from pilotlight.microservices.registry.registry_file import registry
from pilotlight.targets.secret_redaction import redact

T = TypeVar("T")
BuildRequest = Callable[[JobRecord], tuple[StartRequest, Mapping[str, str]]]

THREADS: Final = 16  # calls to platforms block
START_THREADS: Final = 16  # a separate pool, since pulling an image may take an hour; stops have one of the same size
STARTS_PER_ORG: Final = 4  # further starts of the org wait, without blocking other orgs
INFERENCE_THREADS: Final = 64  # each waits for a response of a model
MAX_INFLIGHT: Final = 256  # further requests get 429

log = logging.getLogger("pilotlight.microservices")


def not_running(job_id: str) -> NotFound:
    """Return the error of an id that was never started, is stopped, or belongs to another org."""
    return NotFound(f"no inference microservice {job_id} is running", "start one; ids are not reused")


class MicroserviceOperations:
    """Start, stop and query of microservices. It and the org store are used from one event loop."""

    def __init__(self, store: OrgStore, settings: PlatformSettings, now: Callable[[], str] = utc_now) -> None:
        self.store = store
        self.settings = settings
        self._now = now
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="microservices")
        self._starts = ThreadPoolExecutor(START_THREADS, thread_name_prefix="starts")
        self._stops = ThreadPoolExecutor(START_THREADS, thread_name_prefix="stops")
        self._inference_pool = ThreadPoolExecutor(INFERENCE_THREADS, thread_name_prefix="inference")
        self._start_slots: dict[str, asyncio.Semaphore] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._inflight = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._operations: dict[str, str] = {}
        self._platforms: dict[str, TargetService] = {}
        self._routes: dict[str, tuple[str, ExitStack]] = {}  # by job id

    def start(self, record: JobRecord, request: StartRequest, secret: Mapping[str, str]) -> None:
        """Start in the background; the result is in the record. `secret` has values, passed to the process only."""
        self._spawn(self._start(record, request, secret))

    async def _start(self, record: JobRecord, request: StartRequest, secret: Mapping[str, str]) -> None:
        slot = self._start_slots.setdefault(record.org, asyncio.Semaphore(STARTS_PER_ORG))
        async with slot, self._exclusive(record.id, "its start"):
            try:
                if self.store.job(record.org, record.id).status not in ACTIVE:
                    return
            except NotFound:
                return
            try:
                entry = await self._blocking(self._start_blocking, record, request, secret, pool=self._starts)
            except PlatformError as error:
                text = f"{error}; {error.hint}" if error.hint else str(error)
                self._update(record, status="error", message=redact(text, secret, tuple(secret)))
                log.warning("microservice %s of %s did not start", record.id, record.org)
            except Exception:
                log.exception("microservice %s could not be started", record.id)
                self._update(record, status="error", message="the platform failed; see the log of the API")
            else:
                self._update(record, status="running", entry=entry, platform=request.platform)
                log.info("microservice %s of %s started on %s", record.id, record.org, request.platform)

    def _start_blocking(self, record: JobRecord, request: StartRequest, secret: Mapping[str, str]) -> Entry:
        org_resources.check_stores(request.model_path, request.env, limits_from(self.settings.environ))
        check_model(record.org, request.model_path, request.isolation)
        target, job = self._job(record, request, secret)
        return launcher.start(job, target, registry(self.settings.environ))

    def _job(self, record: JobRecord, request: StartRequest, secret: Mapping[str, str]) -> tuple[TargetService, Job]:
        environ = {**self.settings.environ, **secret}
        return TargetService(request.platform, environ), launcher.build_job(request, environ, record.id)

    async def _restore_secrets(self, record: JobRecord, build_request: BuildRequest) -> None:
        """Give the secrets of a running microservice to a control process that began after its start."""
        try:
            target, job = await self._blocking(self._job, record, *build_request(record))
            await self._blocking(target.restore, job)
        except PlatformError as error:
            log.warning("microservice %s will not be started again after a crash: %s", record.id, error)

    def _platform(self, name: str) -> TargetService:
        """Return the cached platform: connecting to a cluster is expensive."""
        if name not in self._platforms:
            self._platforms[name] = TargetService(name, self.settings.environ)
        return self._platforms[name]

    async def stop(self, record: JobRecord) -> None:
        """Stop a microservice and wait until it is removed. Concurrent stops are one."""
        status = self.store.job(record.org, record.id).status
        if status not in NOT_STOPPED:
            raise not_running(record.id)
        if status != "stopping":
            self._update(record, status="stopping", message="")  # clear the reason of a failed start
        async with self._exclusive(record.id, "its stop"):
            current = self.store.job(record.org, record.id)
            if current.status == "stopped":
                return
            await self.close_route(record.id)
            entry = current.entry or self._registered_entry(current.id)
            if entry is not None:
                try:
                    await self._blocking(self._stop_blocking, current, entry, pool=self._stops)
                except PlatformError as error:
                    self._update(current, message=f"it could not be stopped: {error}")
                    raise
            self._update(current, status="stopped", message="")
            log.info("microservice %s of %s stopped", record.id, record.org)

    def _registered_entry(self, job_id: str) -> Entry | None:
        """Return the registry entry of a failed start that could not be rolled back."""
        return registry(self.settings.environ).read().entries.get(job_id)

    def _stop_blocking(self, record: JobRecord, entry: Entry) -> None:
        self._platform(record.platform or entry.platform).stop(record.id, entry)
        registry(self.settings.environ).remove(record.id)

    def operations(self, job_id: str) -> tuple[str, ...]:
        return (self._operations[job_id],) if job_id in self._operations else ()

    async def platform_status(self, record: JobRecord) -> PlatformStatus | None:
        """Return the status on the platform; None: not started there yet."""
        entry = record.entry
        if entry is None:
            return None
        # in the thread as a whole, since the first use of a platform connects to it
        return await self._blocking(lambda: self._platform(record.platform).status(record.id, entry))

    async def url(self, record: JobRecord) -> str:
        """Return the base URL of a microservice. Its route stays open, since it may be a tunnel."""
        if (entry := record.entry) is None:
            raise not_running(record.id)
        if record.id not in self._routes:
            stack, platform = ExitStack(), self._platform
            url = await self._blocking(
                lambda: stack.enter_context(platform(record.platform).open_route(record.id, entry))
            )
            if self._routes.setdefault(record.id, (url, stack))[1] is not stack:  # another request was faster
                await self._blocking(stack.close)
        return self._routes[record.id][0].rstrip("/")

    async def close_route(self, job_id: str) -> None:
        """Close the route of a microservice that stopped or does not respond; the next request opens a new one."""
        if job_id in self._routes:
            with suppress(Exception):
                await self._blocking(self._routes.pop(job_id)[1].close)

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run a call that waits for an org's storage in the pool of inference requests."""
        return asyncio.get_running_loop().run_in_executor(self._inference_pool, call)

    async def run_inference(self, record: JobRecord, call: Callable[[str], T]) -> T:
        """Call `call` with the URL in a thread. The cached route is closed after a connection failure."""
        if self._inflight >= MAX_INFLIGHT:
            raise Throttled(f"{MAX_INFLIGHT} requests are already in flight; retry", retry_after_s=1)
        url = await self.url(record)
        self._inflight += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._inference_pool, call, url)
        except InferenceFailed as error:
            if not error.status:
                await self.close_route(record.id)
            raise
        finally:
            self._inflight -= 1

    def restore(self, build_request: BuildRequest) -> None:
        """Repeat starts and stops that the previous process did not finish; running microservices run on."""
        for record in self.store.jobs_of_kind("inference_microservice", "running"):
            self._spawn(self._restore_secrets(record, build_request))
        for record in self.store.jobs_of_kind("inference_microservice", "stopping"):
            self._spawn(self._repeat(record, partial(self._stop_logged, record)))
        for record in self.store.jobs_of_kind("inference_microservice", "pending"):
            try:
                self._spawn(self._repeat(record, partial(self._start, record, *build_request(record))))
            except PlatformError as error:
                self._update(record, status="error", message=str(error))

    async def _repeat(self, record: JobRecord, operation: Callable[[], Awaitable[None]]) -> None:
        """Stop what the previous process may have started without recording it, by the job id; then `operation`."""
        if record.entry is None:
            with suppress(PlatformError):
                options = platform_options(self.settings, record.org)
                provisional = self._platform(record.platform).provisional_entry(options)
                entry = self._registered_entry(record.id) or provisional
                await self._blocking(self._stop_blocking, record, entry, pool=self._stops)
        await operation()

    async def _stop_logged(self, record: JobRecord) -> None:
        try:
            await self.stop(record)
        except PlatformError as error:
            log.warning("microservice %s could not be stopped: %s", record.id, error)

    async def close(self) -> None:
        """Finish running operations, for at most 10 s. Microservices continue to run."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=10)
            for task in late:  # restored from its record by the next process
                task.cancel()
        for job_id in list(self._routes):
            await self.close_route(job_id)
        for pool in (self._threads, self._starts, self._stops, self._inference_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _update(self, record: JobRecord, **changes: Any) -> None:
        """Update the record, except for the status of a job that is being stopped."""
        current = self.store.job(record.org, record.id)
        if current.status == "stopping" and changes.get("status") != "stopped":
            changes = {name: value for name, value in changes.items() if name != "status"}
        self.store.update_job(record.org, record.id, self._now(), **changes)

    @asynccontextmanager
    async def _exclusive(self, job_id: str, operation: str) -> AsyncIterator[None]:
        """Serialise the operations of one job."""
        async with self._locks.setdefault(job_id, asyncio.Lock()):
            self._operations[job_id] = operation
            try:
                yield
            finally:
                self._operations.pop(job_id, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _blocking(self, call: Callable[..., T], *arguments: Any, pool: ThreadPoolExecutor | None = None) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool or self._threads, call, *arguments)
