"""Finding the control process of a home folder, or starting it: what every verb does before it asks anything.

The control process writes who it is into `daemon.json` once it answers, and holds a lock on `daemon.lock` while it
lives, so that of two that are started at once one gives way.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from msgspec import DecodeError, Struct, ValidationError, json

from pilotlight import __version__
from pilotlight.contract import API_PORT, GATEWAY_PORT
from pilotlight.errors import NotFound, PlatformError, TimedOut, UsageError
from pilotlight.targets.local.home import Home

HOST: Final = "127.0.0.1"
START_S: Final = 60.0  # a busy machine starts slowly; one that ends instead is told at once
LAST_LINES: Final = 20
MOST_PORT: Final = 65535
PORT_SETTINGS: Final = {
    "PILOTLIGHT_GATEWAY_PORT": GATEWAY_PORT, "PILOTLIGHT_API_PORT": API_PORT, "PILOTLIGHT_SERVICE_PORTS": 8100,
}  # fmt: skip


class Announcement(Struct, frozen=True):
    """What `daemon.json` says. `start_ticks` tells the process from a later one with its number."""

    pid: int
    start_ticks: int
    version: str
    api_port: int
    gateway_port: int
    prometheus: str = ""  # address of the one that is asked


@dataclass(frozen=True, slots=True)
class Address:
    """Where the control process answers, and what it must be shown."""

    port: int
    token: str
    pid: int
    start_ticks: int
    version: str
    gateway_port: int
    host: str = HOST
    prometheus: str = ""


def announce(home: Home, api_port: int, gateway_port: int, prometheus: str = "") -> Announcement:
    """Said by the control process itself, as soon as it answers."""
    pid = os.getpid()
    said = Announcement(pid, start_ticks(pid), __version__, api_port, gateway_port, prometheus)
    fresh = home.address.with_suffix(".new")
    fresh.write_bytes(json.encode(said))
    fresh.replace(home.address)
    return said


def port_setting(name: str, usual: int) -> int:
    """What a variable says, in words that name it where it says nothing that can be used. 0: any port that is free."""
    written = os.environ.get(name) or str(usual)
    if not written.isascii() or not written.isdigit() or int(written) > MOST_PORT:
        raise UsageError(f"{name} = {written}, must be a port from 0 to {MOST_PORT}")
    return int(written)


def check_settings() -> None:
    """Before a process is started that would only die of them."""
    for name, usual in PORT_SETTINGS.items():
        port_setting(name, usual)


def token(home: Home) -> str:
    """The key of the control API, made by whoever needs it first. It is linked into place whole, never half written."""
    if not home.token.exists():
        draft = home.token.with_name(f"token.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
        with suppress(FileExistsError):
            os.link(draft, home.token)
        draft.unlink()
    return home.token.read_text().strip()


def ensure(home: Home, *, start: bool = True, flags: Sequence[str] = (), deadline_s: float = START_S) -> Address:
    """The living control process; where there is none one is started with `flags`, unless `start` forbids it."""
    found = living(home)
    if found is not None and answers(found):
        return found
    if not start:
        raise NotFound("the platform is not running", "start it: platformctl up")
    wait = Wait(home, time.monotonic() + deadline_s, deadline_s, _log_size(home))
    while (found := _started(wait, flags)) is None:
        time.sleep(0.1)  # whoever had the place has left it, or has not said yet where it is
    return found


def _started(wait: "Wait", flags: Sequence[str]) -> Address | None:
    process = _start(wait.home, flags)
    try:
        found = wait.for_answer(process)
        if found is not None and found.pid != process.pid and process.poll() is None:
            process.terminate()  # it has not looked yet whether its place is taken, and would have it after a quick end
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        return found
    finally:
        process.returncode = process.returncode or 0  # it goes on without us: nothing to warn of when we forget it


def living(home: Home) -> Address | None:
    """Who announced itself here and still is the same process."""
    said = _announced(home)
    if said is None or not home.token.exists() or not alive(said.pid, said.start_ticks):
        return None
    return Address(
        said.api_port, token(home), said.pid, said.start_ticks, said.version, said.gateway_port,
        prometheus=said.prometheus,
    )  # fmt: skip


def _announced(home: Home) -> Announcement | None:
    try:
        return json.decode(home.address.read_bytes(), type=Announcement)
    except (OSError, DecodeError, ValidationError):
        return None


def answers(address: Address, timeout_s: float = 5.0) -> bool:
    """Whether it serves: a process that has just been started, or is about to end, does not."""
    connection = HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def leftovers(home: Home) -> bool:
    """Whether something of this home outlived its control process: its gateway, or replicas."""
    from pilotlight.targets.local.supervisor.process import marked

    return _gateway_lives(home) or any(True for _ in marked(home))


def _gateway_lives(home: Home) -> bool:
    from pilotlight.gateway.link import lives

    return lives(home.root)


def wait_gone(address: Address, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> bool:
    """Whether the process has ended in time."""
    until = clock() + deadline_s
    while alive(address.pid, address.start_ticks):
        if clock() >= until:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int, ticks: int) -> bool:
    """The same process, and not one that has ended and waits for its parent to notice."""
    if ticks:
        return start_ticks(pid) == ticks
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since the machine did; 0: it has ended, or nobody here can tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _start(home: Home, flags: Sequence[str]) -> "subprocess.Popen[bytes]":
    """In a session of its own, so that neither Ctrl-C nor the end of the terminal reaches it."""
    check_settings()
    home.create()
    command = [sys.executable, "-m", "pilotlight.daemon", "--home", str(home.root), *_same_ports(home), *flags]
    with _log(home).open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - no shell
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=home.root
        )


def _same_ports(home: Home) -> list[str]:
    """Those of a control process that died while its gateway lives on: they are in use, and must stay."""
    said = _announced(home)
    if said is None or not _gateway_lives(home):
        return []
    return ["--gateway-port", str(said.gateway_port), "--api-port", str(said.api_port)]


class Wait(NamedTuple):
    """For a control process that answers, until a time that lies `deadline_s` ahead; `written` of its log is older."""

    home: Home
    until: float
    deadline_s: float
    written: int

    def for_answer(self, process: "subprocess.Popen[bytes]") -> Address | None:
        """One that ends with 0 has found another already there, which is waited for instead; None: nobody says so."""
        while True:
            code, found = process.poll(), living(self.home)
            if found is not None and answers(found):
                return found
            if code:
                self._fail(f"the control process ended with code {code}", PlatformError, "")
            if time.monotonic() >= self.until:
                said = f"the control process did not answer within {self.deadline_s:g} s; its log ends"
                self._fail(said, TimedOut, ", or run platformctl doctor")
            if code == 0 and found is None:
                return None
            time.sleep(0.01)

    def _fail(self, said: str, kind: type[PlatformError], further: str) -> NoReturn:
        raise kind(f"{said}:\n{_end(self.home, self.written)}", f"see {_log(self.home)}{further}")


def _log(home: Home) -> Path:
    return home.logs / "daemon.log"


def _log_size(home: Home) -> int:
    with suppress(OSError):
        return _log(home).stat().st_size
    return 0


def _end(home: Home, written: int) -> str:
    """The last lines of what was logged since this start."""
    with suppress(OSError), _log(home).open("rb") as file:
        file.seek(written if written <= file.seek(0, 2) else 0)  # a log that was cut meanwhile begins anew
        return "\n".join(file.read().decode(errors="replace").splitlines()[-LAST_LINES:])
    return "(no log)"
