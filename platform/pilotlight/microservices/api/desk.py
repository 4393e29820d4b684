"""What handlers of this area work with: directory, lifecycle, HTTP session and settings, opened when first needed.

One per application, used from its event loop. A platform on which nobody uses microservices never opens the file.
"""

import asyncio
import fcntl
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from typing import IO, TYPE_CHECKING, Final

from aiohttp import web

from pilotlight.errors import Conflict, PlatformError
from pilotlight.gateway.rate import Buckets
from pilotlight.microservices import oidc
from pilotlight.microservices.directory import FILE, Directory
from pilotlight.microservices.lifecycle import Lifecycle
from pilotlight.microservices.media.limits import Limits, limits_from
from pilotlight.microservices.records import THERE
from pilotlight.microservices.wishes import Place, wish_for
from pilotlight.targets.local.home import Home

if TYPE_CHECKING:
    from aiohttp import ClientSession

LOGINS_AT_ONCE: Final = 2  # each computes a slow hash with 16 MiB
LOCK: Final = "microservices.lock"
ENV_PLATFORM: Final = "PILOTLIGHT_API_PLATFORM"
ENV_OPTION: Final = "PILOTLIGHT_API_OPTION_"  # and the name of a platform's option
ANSWER_S: Final = 600.0  # a generation may take minutes

log = logging.getLogger("pilotlight.microservices")


class Desk:
    def __init__(self, home: Home, environ: Mapping[str, str], platform: str = "local") -> None:
        self.home = home
        self.environ = environ
        self.limits: Limits = limits_from(environ)
        self.oidc = oidc.made(environ)
        self.logins = Buckets()
        self.hashing = asyncio.Semaphore(LOGINS_AT_ONCE)
        self.ready: set[str] = set()  # jobs that have answered: not asked again before each request
        self.refused: dict[str, str] = {}  # by job: why its last request was refused
        self._since: dict[str, dict[str, tuple[str, float]]] = {}
        self._place = Place(environ.get(ENV_PLATFORM) or platform, environ, _options(environ))
        self._held: IO[bytes] | None = None
        self._directory: Directory | None = None
        self._lifecycle: Lifecycle | None = None
        self._session: ClientSession | None = None

    @property
    def directory(self) -> Directory:
        if self._directory is None:
            self.home.create()
            held = _held(self.home)
            try:
                self._directory = Directory.open(self.home)
            except BaseException:
                held.close()  # or the next call would find our own lock
                raise
            self._held = held
        return self._directory

    @property
    def lifecycle(self) -> Lifecycle:
        if self._lifecycle is None:
            self._lifecycle = Lifecycle(self.directory, self._place)
        return self._lifecycle

    @property
    def session(self) -> "ClientSession":
        """Without proxies of the environment: a microservice is on this machine or in this cluster."""
        if self._session is None:
            from aiohttp import ClientSession, ClientTimeout

            self._session = ClientSession(timeout=ClientTimeout(total=ANSWER_S, connect=10), auto_decompress=True)
        return self._session

    @property
    def place(self) -> Place:
        return self._place

    def since(self, job_id: str, what: str, now: float) -> float:
        """For how many seconds this has been so: its phase, or that nobody answers. Known since this process began."""
        topic = "voice" if what in ("silent", "heard") else "phase"
        kept = self._since.setdefault(job_id, {})
        if kept.get(topic, ("", 0.0))[0] != what:
            kept[topic] = (what, now)
        return now - kept[topic][1]

    def forget(self, job_id: str) -> None:
        self.ready.discard(job_id)
        self.refused.pop(job_id, None)
        self._since.pop(job_id, None)

    def take_up(self) -> None:
        """What an earlier process left running or undone; else whoever is asked first serves this home."""
        try:
            if self._are_left():
                self.lifecycle.take_up(lambda record: wish_for(self.directory, self._place, record))
        except PlatformError as error:
            log.warning("microservices are not served here: %s", error)

    def _are_left(self) -> bool:
        """Keys and trainings alone are no reason to hold the file: `platformctl api` beside us may be who is asked."""
        if not (self.home.root / FILE).exists():
            return False
        with closing(Directory.open(self.home)) as directory:
            return bool(directory.of_kind("inference_microservice", *THERE))

    async def stop_all(self) -> None:
        """Of those that are served here; nothing where there never was one."""
        if self._directory is not None:
            await self.lifecycle.stop_all()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._lifecycle is not None:
            await self._lifecycle.close()
        if self._directory is not None:
            self._directory.close()
        if self._held is not None:
            self._held.close()


def _held(home: Home) -> IO[bytes]:
    """For as long as this process lives: two that start and stop the same jobs would not know of each other."""
    file = (home.root / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise Conflict(
            f"another process serves the microservices of {home.root}",
            "ask that one, such as the embedded platform's own API, or set PILOTLIGHT_HOME",
        ) from None
    return file


def _options(environ: Mapping[str, str]) -> dict[str, str]:
    """Of every microservice that is started here."""
    return {
        name.removeprefix(ENV_OPTION).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_OPTION) and value
    }


DESK: Final[web.AppKey[Desk]] = web.AppKey("microservices")


async def opened(app: web.Application) -> AsyncIterator[None]:
    app[DESK].take_up()
    yield
    await app[DESK].close()
