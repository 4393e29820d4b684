"""SSH tunnels: each is a process that outlives the one that opened it, recorded in a file.

Ports of loopback or unix sockets of this machine lead to those of another one until the tunnel is closed. The file has
PID and start time of the process, against PID reuse.
"""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Final, NamedTuple

from pilotlight.errors import PlatformError, TimedOut
from pilotlight.targets.local.home_directory import own_folder
from pilotlight.targets.local.process_identity import Identity, identify
from pilotlight.wire import unix_socket

OPEN_S: Final = 30.0
END_S: Final = 5.0
POLL_S: Final = 0.05
OPTIONS: Final = ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=30", "StreamLocalBindUnlink=yes")
Endpoint = int | str  # port of loopback, or path of a unix socket
Forwards = tuple[tuple[Endpoint, Endpoint], ...]  # from, to


class Tunnel(NamedTuple):
    """Forwards from endpoints of this machine to endpoints of `host`."""

    host: str
    forwards: Forwards


def arguments(tunnel: Tunnel) -> list[str]:
    options = [word for option in OPTIONS for word in ("-o", option)]
    forwards = [word for near, far in tunnel.forwards for word in ("-L", f"{_address(near)}:{_address(far)}")]
    return ["ssh", "-N", *options, *forwards, "--", tunnel.host]


def _address(endpoint: Endpoint) -> str:
    return endpoint if isinstance(endpoint, str) else f"127.0.0.1:{endpoint}"


class Tunnels:
    """Tunnels of jobs, with one file per job in `folder`, which is created with the first tunnel and private."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder, self._environ = folder, dict(environ)

    def open(self, job_id: str, tunnel: Tunnel) -> None:
        """Open a tunnel and wait until it accepts connections; no effect if the same one is open."""
        known = self._read(job_id)
        if known is not None:
            if known[0].alive and known[1] == tunnel:
                return
            self.close(job_id)
        own_folder(self._folder)
        pid = self._hold(job_id, tunnel)
        if (holder := identify(pid)) is not None:
            fd = os.open(self._state_file(job_id), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w") as file:
                json.dump({"holder": holder, "tunnel": tunnel}, file)
        try:
            _wait_open(tunnel, pid, self._log(job_id))
        except PlatformError:
            self.close(job_id)
            raise

    def close(self, job_id: str) -> None:
        known = self._read(job_id)
        if known is not None and known[0].alive:
            _end(known[0])
        for path in (self._state_file(job_id), self._log(job_id)):
            path.unlink(missing_ok=True)

    def _hold(self, job_id: str, tunnel: Tunnel) -> int:
        """Start ssh in a new session, so that the terminal's signals do not reach it."""
        program = shutil.which("ssh", path=self._environ.get("PATH"))
        if program is None:
            raise PlatformError("ssh is not on the PATH", "install an ssh client: the tunnel needs it")
        files = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        files.append((os.POSIX_SPAWN_OPEN, 2, str(self._log(job_id)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        return os.posix_spawn(program, arguments(tunnel), self._environ, file_actions=files, setsid=True)

    def _state_file(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"

    def _log(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.log"

    def _read(self, job_id: str) -> tuple[Identity, Tunnel] | None:
        try:
            document = json.loads(self._state_file(job_id).read_bytes())
            host, forwards = document["tunnel"]
            return Identity(*document["holder"]), Tunnel(host, tuple((near, far) for near, far in forwards))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _wait_open(tunnel: Tunnel, pid: int, log: Path) -> None:
    deadline, hint = time.monotonic() + OPEN_S, f"ssh {tunnel.host} must work without a password"
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            lines = log.read_text(errors="replace").split("\n") if log.exists() else []
            reason = next(filter(None, reversed(lines)), f"exit code {os.waitstatus_to_exitcode(status)}").strip()
            raise PlatformError(f"no tunnel to {tunnel.host}: {reason}", hint)
        with suppress(OSError):
            for near, _ in tunnel.forwards:
                _connect(near).close()
            return
        time.sleep(POLL_S)
    raise TimedOut(f"no tunnel to {tunnel.host} within {OPEN_S:g} s", hint)


def _connect(endpoint: Endpoint) -> socket.socket:
    if isinstance(endpoint, int):
        return socket.create_connection(("127.0.0.1", endpoint), 1)
    path = Path(endpoint)
    return unix_socket.connect(f"{unix_socket.SCHEME}{path.parent}", int(path.name))


def _end(holder: Identity) -> None:
    """Terminate the process by a pidfd, against PID reuse."""
    with suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open"):
            os.kill(holder.pid, signal.SIGTERM)
            return
        handle = os.pidfd_open(holder.pid)
        try:
            if holder.alive:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
                select([handle], [], [], END_S)
        finally:
            os.close(handle)
    with suppress(ChildProcessError):  # it may be another process's child
        os.waitpid(holder.pid, os.WNOHANG)
