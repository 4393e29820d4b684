"""Find or start the control process of a home folder; every command of platformctl begins with this.

The control process writes its announcement to `daemon.json` once it serves, and holds a lock on `daemon.lock` while it
runs, so that of two started at the same time one exits. `daemon.command` says that the platform should run; a parent
process (parent_process.py) restarts it by that command.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Final, NamedTuple, NoReturn

from msgspec import DecodeError, Struct, ValidationError, field, json
from msgspec.structs import astuple

from pilotlight import __version__
from pilotlight.contract import API_PORT, GATEWAY_PORT
from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.targets.local import parent_process
from pilotlight.targets.local.detached_process import start_detached
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.process_identity import Identity, identify
from pilotlight.wire.machine import boot_id, last_lines
from pilotlight.wire.shared_files import is_locked, replace_file, try_lock

HOST: Final = "127.0.0.1"
START_S: Final = 60.0  # a busy machine starts slowly; an early exit is reported at once
LAST_LINES: Final = 20
REASON_BYTES: Final = 65536
RESTART_S: Final = 5.0  # a restart of the control process takes one or two seconds
PARENT_EXIT_S: Final = 5.0
LOCK_S: Final = 5.0
ANSWER_S: Final = 5.0
MAX_PORT: Final = 65535
PORT_SETTINGS: Final = {
    "PILOTLIGHT_GATEWAY_PORT": GATEWAY_PORT, "PILOTLIGHT_API_PORT": API_PORT, "PILOTLIGHT_SERVICE_PORTS": 8100,
}  # fmt: skip


class Announcement(Struct, frozen=True):
    """Content of `daemon.json`. `start_ticks` distinguishes the process from a later one with its pid."""

    pid: int
    start_ticks: int
    version: str
    port: int = field(name="api_port")
    gateway_port: int
    prometheus: str = ""  # address of the Prometheus server in use
    engine_path: str = ""  # folders of programs of engines

    @property
    def alive(self) -> bool:
        return Identity(self.pid, boot_id(), self.start_ticks).alive


class Address(Announcement, frozen=True, kw_only=True):
    """Address and token of a control process."""

    token: str = ""
    host: str = HOST


def announce(home: Home, api_port: int, gateway_port: int, prometheus: str = "") -> Announcement:
    """Write the announcement of this process, once it serves."""
    from pilotlight.targets.local.installed_engines import search_path  # clients do without it

    own, ports, engine_path = identify(os.getpid()), (api_port, gateway_port), search_path(os.environ)
    assert own is not None
    announcement = Announcement(own.pid, own.start_ticks, __version__, *ports, prometheus, engine_path)
    replace_file(home.address, json.encode(announcement))
    return announcement


def record_restart_command(home: Home, command: Sequence[str]) -> None:
    """Record that the platform should run, and the command that restarts its control process."""
    written = "\0".join(command).encode()
    with suppress(OSError):
        if home.restart_command.read_bytes() == written:
            return
    replace_file(home.restart_command, written)


def should_run(home: Home) -> bool:
    """Whether the platform was started and not stopped since."""
    return home.restart_command.exists()


def stored_options(home: Home) -> dict[str, str]:
    """Return the flags of the last start with their values, until `down` ends the platform."""
    options: dict[str, str] = {}
    with suppress(OSError):
        flag = ""
        for word in home.restart_command.read_text().split("\0"):
            if word.startswith("--"):
                options[flag := word] = ""
            elif flag:
                options[flag] = word
    options.pop("--home", None)
    return options


def restart_flags(home: Home, flags: Sequence[str]) -> list[str]:
    """Return the options of the last start that a start with `flags` keeps: after a crash, those it does not set."""
    options = {flag: value for flag, value in stored_options(home).items() if flag not in {*flags, "--foreground"}}
    return [word for option in options.items() for word in option if word]


def record_stopped(home: Home) -> None:
    """Record that the platform should not run; its parent process ends with its control process."""
    with suppress(OSError):
        home.restart_command.unlink(missing_ok=True)


def parent_running(home: Home) -> bool:
    return is_locked(home.parent_lock)


def start_parent(home: Home) -> None:
    """Start a parent process, which adopts the control process that runs."""
    command = (sys.executable, "-I", "-S", parent_process.__file__, "--home", str(home.root))
    start_detached(command, _log(home))


def wait_parent_exit(home: Home) -> None:
    until = time.monotonic() + PARENT_EXIT_S
    while parent_running(home) and time.monotonic() < until:
        time.sleep(0.01)


def wait_restarted(home: Home, deadline_s: float = RESTART_S) -> Address | None:
    """Wait for the parent process, or systemd, to restart the control process, unless it fails at every start."""
    until = time.monotonic() + deadline_s
    by_systemd = "--foreground" in stored_options(home)
    while (address := living(home)) is None and (by_systemd or parent_running(home)) and not failure_reason(home):
        if time.monotonic() >= until:
            return None
        time.sleep(0.05)
    return address


def failure_reason(home: Home) -> str:
    """Return the last error of a control process that failed to start; empty: it had started, and was killed."""
    try:
        lines = last_lines(_log(home), max_bytes=REASON_BYTES, whole=True)
    except OSError:
        return ""
    return reason_in(lines)


def failure(home: Home) -> tuple[str, str]:
    """Return why a platform that should run does not, and the command to type."""
    reason = failure_reason(home) or f"its control process has exited, see {_log(home)}"
    return reason, _lost_state_hint(reason) or "start it with platformctl up"


def _lost_state_hint(reason: str) -> str:
    """Return the hint for a lost or damaged state, whose reason names the commands; empty: another reason."""
    return "services keep running; stop them with platformctl down" if "platformctl restore" in reason else ""


def reason_in(lines: Sequence[str]) -> str:
    """Return why the last start failed, unless a control process has started after that."""
    for line in reversed(lines):
        for failed in (" ERROR pilotlight.daemon: not started: ", " ERROR pilotlight.parent: "):
            if failed in line:
                return line.partition(failed)[2]
        if " INFO pilotlight.daemon: started: " in line:
            return ""
    return ""


def lock(home: Home) -> IO[bytes] | None:
    """Take the home folder's lock; None: a control process holds it."""
    return try_lock(home.lock)


@contextmanager
def without_control_process(home: Home) -> Iterator[None]:
    """Keep control processes from starting within the block. Raise UsageError if one runs."""
    until = time.monotonic() + LOCK_S
    while (held := lock(home)) is None:
        # One that refuses a lost state, started by the parent process again and again, has the lock for a moment.
        if living(home) is not None or time.monotonic() > until:
            raise UsageError("the platform is running; stop it first: platformctl down")
        time.sleep(0.05)
    with held:
        yield


def port_setting(name: str, default: int) -> int:
    """Return the port of an environment variable; 0: any free port. Raise UsageError if invalid."""
    written = os.environ.get(name) or str(default)
    if not written.isascii() or not written.isdigit() or int(written) > MAX_PORT:
        raise UsageError(f"{name} = {written}, must be a port from 0 to {MAX_PORT}")
    return int(written)


def token(home: Home) -> str:
    """Return the token of the control API, created on first use; hard-linked into place, so never partly written."""
    home.check_owner()
    if not home.token.exists():
        draft = home.token.with_name(f"token.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
        with suppress(FileExistsError):
            os.link(draft, home.token)
        draft.unlink()
    return home.token.read_text().strip()


def ensure(home: Home, *, start: bool = True, flags: Sequence[str] = (), deadline_s: float = START_S) -> Address:
    """Return the running control process; start one with `flags` if there is none and `start` permits it.

    One that should run keeps its other options, whatever the environment says.
    """
    address = living(home)
    if address is not None and answers(address):
        return address
    if not start:
        raise NotFound("the platform is not running", "start it: platformctl up")
    log = _log(home)
    written = log.stat().st_size if log.exists() else 0
    wait = StartWait(home, time.monotonic() + deadline_s, deadline_s, written)
    while (address := _started(wait, flags)) is None:
        time.sleep(0.1)  # the one that held the lock has just exited, or has not announced itself yet
    return address


def _started(wait: "StartWait", flags: Sequence[str]) -> Address | None:
    process = _start(wait.home, flags)
    try:
        address = wait.for_answer(process)
        if address is not None and address.pid != process.pid and process.poll() is None:
            # Another process serves, and this one has not tried the lock yet: it would get it if the other exits soon.
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        return address
    finally:
        process.returncode = process.returncode or 0  # it keeps running: suppress Popen's ResourceWarning


def living(home: Home) -> Address | None:
    """Return the address of the announced control process if it still runs. Raise PlatformError as `check_owner`."""
    home.check_owner()
    announcement = announced(home)
    if announcement is None or not home.token.exists() or not announcement.alive:
        return None
    return Address(*astuple(announcement), token=token(home))


def announced(home: Home) -> Announcement | None:
    """Return the last announcement, also of a process that has ended."""
    try:
        return json.decode(home.address.read_bytes(), type=Announcement)
    except (OSError, DecodeError, ValidationError):
        return None


def answers(address: Address, timeout_s: float = ANSWER_S) -> bool:
    """Whether the control process serves; one that starts or stops does not."""
    connection = HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def leftovers(home: Home) -> bool:
    """Whether the gateway or replicas of this home still run."""
    from pilotlight.targets.local.supervisor.process_inspection import replica_processes

    return _gateway_running(home) or any(True for _ in replica_processes(home))


def _gateway_running(home: Home) -> bool:
    from pilotlight.gateway.control_link import is_running

    return is_running(home.root)


def wait_exit(address: Address, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> bool:
    """Wait for the process to exit; return whether it did in time."""
    until = clock() + deadline_s
    while address.alive:
        if clock() >= until:
            return False
        time.sleep(0.02)
    return True


def _start(home: Home, flags: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a control process in a session of its own, out of reach of Ctrl-C and the end of the terminal."""
    words = command(home, [*restart_flags(home, flags), *flags])
    with open(_log(home), "ab", opener=partial(os.open, mode=0o600)) as log:
        try:
            return subprocess.Popen(  # noqa: S603 - no shell
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=home.root
            )
        except OSError as error:
            message = f"the control process cannot be started: {error.filename or words[0]}: {error.strerror}"
            raise PlatformError(message, f"check that this user may run {words[0]}, and how many processes") from None


def command(home: Home, flags: Sequence[str] = ()) -> list[str]:
    """Create the home folder and return the command of its control process. Raise UsageError for invalid settings."""
    for name, default in PORT_SETTINGS.items():
        port_setting(name, default)  # raises here: the started process would only fail
    home.create()
    ports: tuple[str, ...] = ()
    if (announcement := announced(home)) is not None and _gateway_running(home):
        # The gateway of a dead control process serves on these ports.
        ports = ("--gateway-port", str(announcement.gateway_port), "--api-port", str(announcement.port))
    return [sys.executable, "-m", "pilotlight.control_plane.daemon", "--home", str(home.root), *ports, *flags]


class StartWait(NamedTuple):
    """Wait for a control process to serve, until `until`; `written` is the log's size before the start."""

    home: Home
    until: float
    deadline_s: float
    written: int

    def for_answer(self, process: "subprocess.Popen[bytes]") -> Address | None:
        """Return the process that serves; None: `process` found the lock held (exit code 0), but none is announced."""
        while True:
            code, address = process.poll(), living(self.home)
            if address is not None and answers(address):
                return address
            if code:
                self._fail(f"the control process exited with code {code}", PlatformError, "")
            if time.monotonic() >= self.until:
                message = f"the control process did not answer within {self.deadline_s:g} s; end of its log"
                self._fail(message, TimedOut, ", or run platformctl doctor")
            if code == 0 and address is None:
                return None
            time.sleep(0.01)

    def _fail(self, message: str, kind: type[PlatformError], further: str) -> NoReturn:
        lines = ["(no log)"]
        with suppress(OSError):
            lines = last_lines(_log(self.home), LAST_LINES, since=self.written)
        see = f"see {_log(self.home)}{further}"
        if kind is PlatformError and (reason := reason_in(lines)):
            raise kind(f"the platform cannot be started: {reason}", _lost_state_hint(reason) or see)
        raise kind("\n".join((f"{message}:", *lines)), see)


def _log(home: Home) -> Path:
    return home.logs / "daemon.log"
