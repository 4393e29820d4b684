"""Shared context of the area's handlers: org store, operations, HTTP session and settings, opened on first use.

One per application, used from its event loop. Without microservices the database is never opened.
"""

import asyncio
import logging
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, closing
from functools import cached_property, partial
from typing import IO, Final

from aiohttp import ClientSession, ClientTimeout, web

from pilotlight.api import oidc
from pilotlight.errors import Conflict, PlatformError
from pilotlight.microservices.jobs import org_resources
from pilotlight.microservices.jobs.microservice_operations import MicroserviceOperations
from pilotlight.microservices.jobs.start_request import PlatformSettings, start_request_for
from pilotlight.microservices.media import Limits, limits_from, read_declaration
from pilotlight.microservices.registry import operator_settings
from pilotlight.microservices.registry.database import FILE, OrgStore
from pilotlight.microservices.registry.records import NOT_STOPPED, Workspace
from pilotlight.targets.local.home_directory import Home
from pilotlight.wire.shared_files import try_lock
from pilotlight.wire.token_bucket import TokenBuckets

MAX_HASHES: Final = 2  # each hash takes 16 MiB
LOCK: Final = "microservices.lock"
ENV_PLATFORM: Final = "PILOTLIGHT_API_PLATFORM"
ENV_OPTION: Final = "PILOTLIGHT_API_OPTION_"  # prefix of a platform option
IDENTITY: Final = {"Accept-Encoding": "identity"}  # the code of an org could send what unpacks to gigabytes
DECLARATION_RETRY_S: Final = 5.0
INFERENCE_TIMEOUT_S: Final = 600.0  # a generation may take minutes

log = logging.getLogger("pilotlight.microservices")


class ApiContext:
    """What handlers share; `settings` has the platform and its options from the environment."""

    def __init__(self, home: Home, environ: Mapping[str, str], platform: str = "local") -> None:
        self.home = home
        self.environ = ChainMap(operator_settings.settings(home), dict(environ))
        self.limits: Limits = limits_from(self.environ)
        self.oidc = oidc.from_environ(environ)
        self.logins = TokenBuckets()
        self.hash_slots = asyncio.Semaphore(MAX_HASHES)
        self.ready: set[str] = set()  # jobs known to be ready: no status check before each request
        self.rejections: dict[str, str] = {}  # by job: why its last request was rejected
        self._since: dict[str, dict[str, tuple[str, float]]] = {}
        self._declarations: dict[str, tuple[asyncio.Future[str], float]] = {}
        options = {
            name.removeprefix(ENV_OPTION).lower(): value
            for name, value in environ.items()
            if name.startswith(ENV_OPTION) and value
        }
        self.settings = PlatformSettings(environ.get(ENV_PLATFORM) or platform, self.environ, options)
        self._opened = AsyncExitStack()

    def refresh(self) -> None:
        """Read the settings that the operator may have changed since the last request."""
        if (settings := operator_settings.settings(self.home)) != self.environ.maps[0]:
            self.environ.maps[0] = settings  # one step: threads read it
            self.limits = limits_from(self.environ)

    @property
    def max_records(self) -> int:
        """Quota of an org: records of each kind."""
        return org_resources.quota(org_resources.ENV_RECORDS, self.environ)

    @cached_property
    def store(self) -> OrgStore:
        self.home.create()
        with ExitStack() as opened:  # a failure closes the lock, on which the next call would fail
            opened.enter_context(_acquire_lock(self.home))
            store = opened.enter_context(closing(OrgStore.open(self.home)))
            self._opened.callback(opened.pop_all().close)
        return store

    @cached_property
    def operations(self) -> MicroserviceOperations:
        operations = MicroserviceOperations(self.store, self.settings)
        self._opened.push_async_callback(operations.close)
        return operations

    @cached_property
    def session(self) -> ClientSession:
        """HTTP session without proxies of the environment: microservices are on this machine or in this cluster."""
        timeout = ClientTimeout(total=INFERENCE_TIMEOUT_S, connect=10)
        session = ClientSession(timeout=timeout, auto_decompress=False, headers=IDENTITY)
        self._opened.push_async_callback(session.close)
        return session

    def seconds_in(self, job_id: str, state: str, now: float) -> float:
        """Return the seconds that a job has been in a phase, or silent or responding, since this process started."""
        topic = "contact" if state in ("silent", "responding") else "phase"
        states = self._since.setdefault(job_id, {})
        if states.get(topic, ("", 0.0))[0] != state:
            states[topic] = (state, now)
        return now - states[topic][1]

    async def declaration(self, job_id: str, model: str, workspace: Workspace | None) -> str:
        """Return the text of parameters.yaml of a job's model.

        One in a store is read once: a served model does not change, nor depend on its store. After a failure it is read
        again.
        """
        read = partial(read_declaration, model, workspace, self.limits, self.environ)
        if "://" not in model:
            return await asyncio.to_thread(read)
        now = time.monotonic()
        reading, since = self._declarations.get(job_id, (None, now))
        if reading is None or (now - since > DECLARATION_RETRY_S and reading.done() and reading.exception()):
            reading = self.operations.submit(read)
            self._declarations[job_id] = reading, now
        return await asyncio.shield(reading)

    def forget(self, job_id: str) -> None:
        self.ready.discard(job_id)
        self._declarations.pop(job_id, None)
        self.rejections.pop(job_id, None)
        self._since.pop(job_id, None)

    def restore(self) -> None:
        """Restore unfinished operations of an earlier process, once this one serves: they may be calls of its API.

        Keys and trainings alone do not lock the home.
        """
        if not (self.home.root / FILE).exists():
            return
        try:
            with closing(OrgStore.open(self.home)) as store:
                unfinished = store.jobs_of_kind("inference_microservice", *NOT_STOPPED)
            if unfinished:
                self.operations.restore(lambda record: start_request_for(self.store, self.settings, record))
        except PlatformError as error:
            log.warning("the microservices API is off: %s", error)

    async def close(self) -> None:
        await self._opened.aclose()


def _acquire_lock(home: Home) -> IO[bytes]:
    """Lock the home for this process, so that no two processes manage the same jobs. Raise Conflict."""
    file = try_lock(home.root / LOCK)
    if file is None:
        raise Conflict(
            f"another process already serves the microservices of {home.root}",
            "use that one, such as the API of the embedded platform, or set PILOTLIGHT_HOME",
        )
    return file


CONTEXT: Final[web.AppKey[ApiContext]] = web.AppKey("microservices")


def job_path(request: web.Request) -> tuple[str, str, str]:
    return request.match_info["org"], request.match_info["experiment"], request.match_info["job"]


async def context_lifespan(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[CONTEXT].close()
