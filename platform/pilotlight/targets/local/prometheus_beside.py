"""A real Prometheus beside the embedded platform: found, told whom to scrape, started, taken over, and ended.

It asks the control API for its targets, has our rules, and keeps its data in the home folder. Like the gateway it
outlives the control process: a file says who runs, and the next one takes it over. `down` ends it.
"""

import asyncio
import json
import logging
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError, Struct, ValidationError
from msgspec import json as records

from pilotlight.errors import NotFound, PlatformError
from pilotlight.gateway.detached import start_detached
from pilotlight.observability.rules import rules
from pilotlight.targets.local import launching
from pilotlight.targets.local.home import Home
from pilotlight.targets.local.prometheus_port import HOST, free_port, is_ready, may_listen
from pilotlight.targets.local.supervisor.process import ExitWatch, Identity, identify

Json = Any
AUTO: Final = "auto"
PORT: Final = 9090  # Prometheus' own, where it is free
SCRAPE_S: Final = 5
START_S: Final = 15.0  # with the gateway's, less than what whoever starts the platform waits for
STOP_S: Final = 10.0
PAUSE_S: Final = 2.0  # before one that ended by itself is started again; twice as long after each that ended soon
LONGEST_PAUSE_S: Final = 300.0
SOON_S: Final = 60.0
RETENTION: Final = "15d"
TAKEN: Final = "address already in use"
log = logging.getLogger(__name__)


class Running(Struct, frozen=True):
    """Who was started, as the home folder remembers it."""

    pid: int
    boot_id: str
    start_ticks: int
    port: int

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.boot_id, self.start_ticks)


def is_address(wanted: str) -> bool:
    """Of one that somebody else runs; anything else is a program to start."""
    return wanted.startswith(("http://", "https://"))


def cached() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pilotlight" / "prometheus" / "prometheus"


def find(wanted: str = AUTO) -> Path:
    """The program: the one that was named, else the one on the PATH, else the one in the user's cache."""
    if wanted not in ("", AUTO):
        path = Path(wanted).expanduser()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise NotFound(f"--prometheus = {wanted}, must be an address (http://…) or a program that can be run")
        return path.absolute()
    found = shutil.which("prometheus")
    if found or os.access(cached(), os.X_OK):
        return Path(found) if found else cached()
    hint = "apt-get install prometheus, or name the program: --prometheus=/path/to/prometheus"
    raise NotFound("prometheus is not installed: it is neither on the PATH nor in the cache", hint)


def configuration(home: Home, api_port: int) -> dict[str, Json]:
    """Targets say themselves whose they are; what a predictor says of itself wins."""
    discovery = {
        "url": f"http://{HOST}:{api_port}/api/v1/scrape_targets", "refresh_interval": f"{SCRAPE_S}s",
        "authorization": {"type": "Bearer", "credentials_file": str(home.token)},  # older ones have no default here
    }  # fmt: skip
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(_folder(home) / "rules.yaml")],
        "scrape_configs": [{"job_name": "pilotlight", "honor_labels": True, "http_sd_configs": [discovery]}],
    }


def _folder(home: Home) -> Path:
    return home.root / "prometheus"


def _note(home: Home) -> Path:
    return _folder(home) / "running.json"


def running(home: Home) -> Running | None:
    """The one that this home has started and that still lives."""
    try:
        told = records.decode(_note(home).read_bytes(), type=Running)
    except (OSError, DecodeError, ValidationError):
        return None
    return told if told.identity.alive else None


def url_of(found: Running) -> str:
    return f"http://{HOST}:{found.port}"


async def begin(home: Home, wanted: str, api_port: int) -> str:
    """The address that is to be asked: the one that was given, or that of a Prometheus which is started for it."""
    if not wanted or is_address(wanted):
        return wanted
    return await Beside(home, find(wanted), api_port).start()


class Beside:
    """Used from one event loop. One that ends by itself is started again."""

    def __init__(self, home: Home, program: Path, api_port: int) -> None:
        self._home, self._program, self._api_port = home, program, api_port
        self._watch: ExitWatch | None = None
        self._port = 0
        self._pause_s, self._launched_at = PAUSE_S, 0.0

    async def start(self) -> str:
        """Its address, once it answers. A living one that was told the same is taken over."""
        found, changed = running(self._home), self._write()
        if found is not None and changed:
            await end(self._home)
        if found is None or changed:
            found = await self._begun(found.port if found is not None else free_port(PORT))
        self._port = found.port
        self._follow(found)
        return url_of(found)

    async def _begun(self, port: int) -> Running:
        """A port that was free may be another's by the time it is used: then one more is tried."""
        self._port = port
        self._launch()
        try:
            return await self._answering()
        except PlatformError:
            if running(self._home) is not None or TAKEN not in _tail(self._log).lower():
                raise
        self._port = free_port(0)
        self._launch()
        return await self._answering()

    def _write(self) -> bool:
        """Whether anything differs from what a living one has read. JSON is YAML."""
        folder = _folder(self._home)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        launching.token(self._home)  # which it reads with every question for targets
        wanted = {"prometheus.yaml": configuration(self._home, self._api_port), "rules.yaml": rules()}
        differs = False
        for name, content in wanted.items():
            path, text = folder / name, json.dumps(content, indent=1)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                differs = True
        return differs

    def _launch(self) -> None:
        folder = _folder(self._home)
        command = [
            str(self._program), f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--storage.tsdb.retention.time={RETENTION}", f"--web.listen-address={HOST}:{self._port}",
        ]  # fmt: skip
        self._launched_at = asyncio.get_running_loop().time()
        pid = start_detached(command, self._log)
        if (known := identify(pid)) is not None:
            _note(self._home).write_bytes(records.encode(Running(*known, self._port)))

    @property
    def _log(self) -> Path:
        return self._home.logs / "prometheus.log"

    async def _answering(self) -> Running:
        loop = asyncio.get_running_loop()
        until = loop.time() + START_S
        while (found := running(self._home)) is not None:
            answers = await is_ready(found.port) and await asyncio.to_thread(may_listen, found.pid, found.port)
            if answers and found.identity.alive:
                return found
            if loop.time() > until:
                raise PlatformError(f"Prometheus does not answer on port {found.port}", f"see {self._log}")
            await asyncio.sleep(0.05)
        raise PlatformError(f"Prometheus ended at once:\n{_tail(self._log)}", f"see {self._log}")

    def _follow(self, found: Running) -> None:
        self._watch = ExitWatch(found.pid, self._ended)

    def _ended(self) -> None:
        if not _note(self._home).exists():
            return  # it was told to
        loop = asyncio.get_running_loop()
        self._pause_s = next_pause(self._pause_s, loop.time() - self._launched_at)
        log.warning("Prometheus ended; it is started again in %g s, see %s", self._pause_s, self._log)
        loop.call_later(self._pause_s, self._restart)

    def _restart(self) -> None:
        try:
            self._launch()
        except OSError as error:
            log.warning("Prometheus cannot be started: %s", error)
        if (found := running(self._home)) is None:
            self._ended()
        else:
            self._follow(found)


def next_pause(last_s: float, lived_s: float) -> float:
    """One that ends at once is started ever less often; one that has lived for a while, soon."""
    return min(2 * last_s, LONGEST_PAUSE_S) if lived_s < SOON_S else PAUSE_S


async def end(home: Home) -> None:
    """Whoever started it, and with whatever options this process runs."""
    found = running(home)
    if found is None:
        return
    with suppress(ProcessLookupError):
        os.kill(found.pid, signal.SIGTERM)
    _note(home).unlink(missing_ok=True)
    until = asyncio.get_running_loop().time() + STOP_S
    while found.identity.alive:
        if asyncio.get_running_loop().time() > until:
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGKILL)
        await asyncio.sleep(0.02)


def _tail(path: Path) -> str:
    with suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-10:])
    return "(no log)"
