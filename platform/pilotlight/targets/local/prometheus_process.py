"""Optional Prometheus server of the embedded platform: found, configured, started, adopted and stopped.

It discovers targets through the control API, has the platform's rules, and keeps its data in the home folder. Like the
gateway it outlives the control process; the next one adopts it by its state file. `platformctl down` stops it.
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

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway.listeners import listening_inodes, listening_pids
from pilotlight.observability.files import rules_text
from pilotlight.targets.local import control_process_launcher
from pilotlight.targets.local.control_process_launcher import HOST
from pilotlight.targets.local.detached_process import start_detached
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.process_identity import Identity, identify
from pilotlight.targets.local.supervisor.process_inspection import ExitWatch
from pilotlight.wire.http_client import request
from pilotlight.wire.machine import free_port, last_lines

Json = Any
AUTO: Final = "auto"
PORT: Final = 9090  # Prometheus' own, where it is free
SCRAPE_S: Final = 5
START_S: Final = 15.0  # with the gateway's, less than control_process.START_S
READY_S: Final = 2.0
STOP_S: Final = 10.0
PAUSE_S: Final = 2.0  # backoff before a restart; doubled after each process that ended within SOON_S
LONGEST_PAUSE_S: Final = 300.0
SOON_S: Final = 60.0
RETENTION: Final = "15d"
TAKEN: Final = "address already in use"
log = logging.getLogger(__name__)


def may_listen(pid: int, port: int) -> bool:
    """Whether the process, or one of its session, listens on the port; True if that cannot be determined."""
    for listening in listening_pids(port):
        with suppress(OSError):
            if os.getsid(listening) == pid:
                return True
    if not listening_inodes(port):
        return True
    try:
        os.listdir(f"/proc/{pid}/fd")
    except FileNotFoundError:  # it has ended
        return False
    except PermissionError:
        return True
    return False


class PrometheusProcess(Struct, frozen=True):
    """State file: the started process and its port."""

    identity: Identity
    port: int


def is_address(wanted: str) -> bool:
    """Whether the setting is the address of an external server; anything else is a program to start."""
    return wanted.startswith(("http://", "https://"))


def cached() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pilotlight" / "prometheus" / "prometheus"


def find(wanted: str = AUTO) -> Path:
    """Return the program: the named one, else the one on the PATH, else the one in the user's cache."""
    if wanted not in ("", AUTO):
        path = Path(wanted).expanduser()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise UsageError(f"--prometheus = {wanted}, must be an address (http://…) or a program that can be run")
        return path.absolute()
    on_path = shutil.which("prometheus")
    if on_path or os.access(cached(), os.X_OK):
        return Path(on_path) if on_path else cached()
    hint = "apt-get install prometheus, or set the program: --prometheus=/path/to/prometheus"
    raise PlatformError("prometheus is not installed: it is neither in PATH nor in the cache", hint)


def configuration(home: Home, api_port: int) -> dict[str, Json]:
    """Return the configuration; targets have labels from service discovery, but a predictor's own win."""
    discovery = {
        "url": f"http://{HOST}:{api_port}/api/v1/scrape_targets", "refresh_interval": f"{SCRAPE_S}s",
        "authorization": {"type": "Bearer", "credentials_file": str(home.token)},  # older versions have no default type
    }  # fmt: skip
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(_folder(home) / "rules.yaml")],
        "scrape_configs": [{"job_name": "pilotlight", "honor_labels": True, "http_sd_configs": [discovery]}],
    }


def _folder(home: Home) -> Path:
    return home.root / "prometheus"


def _state_file(home: Home) -> Path:
    return _folder(home) / "running.json"


def running(home: Home) -> PrometheusProcess | None:
    """Return the server that this home has started, if it still runs."""
    try:
        state = records.decode(_state_file(home).read_bytes(), type=PrometheusProcess)
    except (OSError, DecodeError, ValidationError):
        return None
    return state if state.identity.alive else None


def url_of(process: PrometheusProcess) -> str:
    return f"http://{HOST}:{process.port}"


async def start(home: Home, wanted: str, api_port: int) -> str:
    """Return the address of the server to query: the given one, or that of a server started here."""
    if not wanted or is_address(wanted):
        return wanted
    return await PrometheusServer(home, find(wanted), api_port).start()


class PrometheusServer:
    """Server process of a home, restarted when it ends by itself. Used from one event loop."""

    def __init__(self, home: Home, program: Path, api_port: int) -> None:
        self._home, self._program, self._api_port = home, program, api_port
        self._watch: ExitWatch | None = None
        self._port = 0
        self._pause_s, self._launched_at = PAUSE_S, 0.0

    async def start(self) -> str:
        """Return its address once it is ready. A running one with the same configuration is adopted."""
        process, changed = running(self._home), self._write()
        if process is not None and changed:
            await stop(self._home)
        if process is None or changed:
            process = await self._start_on(process.port if process is not None else free_port(PORT))
        self._port = process.port
        self._watch_exit(process)
        return url_of(process)

    async def _start_on(self, port: int) -> PrometheusProcess:
        """Start on a port, or on another one if it has been taken since it was found free."""
        self._port = port
        self._launch()
        try:
            return await self._wait_ready()
        except PlatformError:
            if running(self._home) is not None or TAKEN not in _tail(self._log).lower():
                raise
        self._port = free_port()
        self._launch()
        return await self._wait_ready()

    def _write(self) -> bool:
        """Write the configuration (JSON is YAML); return whether it has changed."""
        folder = _folder(self._home)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        control_process_launcher.token(self._home)  # created here, since service discovery reads it
        settings = json.dumps(configuration(self._home, self._api_port), indent=1)
        differs = False
        for name, text in (("prometheus.yaml", settings), ("rules.yaml", rules_text())):
            path = folder / name
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
        if (identity := identify(pid)) is not None:
            _state_file(self._home).write_bytes(records.encode(PrometheusProcess(identity, self._port)))

    @property
    def _log(self) -> Path:
        return self._home.logs / "prometheus.log"

    async def _wait_ready(self) -> PrometheusProcess:
        loop = asyncio.get_running_loop()
        until = loop.time() + START_S
        while (process := running(self._home)) is not None:
            # Another program may listen on the port: it must be this process that is ready.
            response = await request(process.port, "/-/ready", READY_S, host=HOST)
            ready = response.status == 200 and await asyncio.to_thread(may_listen, process.identity.pid, process.port)
            if ready and process.identity.alive:
                return process
            if loop.time() > until:
                raise PlatformError(f"Prometheus does not answer on port {process.port}", f"see {self._log}")
            await asyncio.sleep(0.05)
        raise PlatformError(f"Prometheus exited immediately:\n{_tail(self._log)}", f"see {self._log}")

    def _watch_exit(self, process: PrometheusProcess) -> None:
        self._watch = ExitWatch(process.identity.pid, self._on_exit)

    def _on_exit(self) -> None:
        if not _state_file(self._home).exists():
            return  # stopped on purpose
        loop = asyncio.get_running_loop()
        self._pause_s = next_pause(self._pause_s, loop.time() - self._launched_at)
        log.warning("Prometheus exited; restarting in %g s, see %s", self._pause_s, self._log)
        loop.call_later(self._pause_s, self._restart)

    def _restart(self) -> None:
        try:
            self._launch()
        except OSError as error:
            log.warning("Prometheus cannot be started: %s", error)
        if (process := running(self._home)) is None:
            self._on_exit()
        else:
            self._watch_exit(process)


def next_pause(last_s: float, lived_s: float) -> float:
    """Return the next backoff: doubled after a short life, else the initial one."""
    return min(2 * last_s, LONGEST_PAUSE_S) if lived_s < SOON_S else PAUSE_S


async def stop(home: Home) -> None:
    """Stop the server of this home, whichever control process started it."""
    process = running(home)
    if process is None:
        return
    with suppress(ProcessLookupError):
        os.kill(process.identity.pid, signal.SIGTERM)
    _state_file(home).unlink(missing_ok=True)
    until = asyncio.get_running_loop().time() + STOP_S
    while process.identity.alive:
        if asyncio.get_running_loop().time() > until:
            with suppress(ProcessLookupError):
                os.kill(process.identity.pid, signal.SIGKILL)
        await asyncio.sleep(0.02)


def _tail(path: Path) -> str:
    with suppress(OSError):
        return "\n".join(last_lines(path, 10))
    return "(no log)"
