"""Client of pilot lights: forks predictors from preloaded processes, one per family of models in use.

A pilot light (`pilotlight_predictor.bootstrap.forkserver`) has imported a family's libraries and forks a predictor in
milliseconds instead of tenths of a second. It starts a moment after the first predictor of its family, so as not to
compete with it, ends itself when idle, and is optional: a fresh process is started whenever it fails.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.supervisor.container_command import inherited_env
from pilotlight.targets.local.supervisor.process_inspection import FORKSERVER, ExitWatch, pilot_light_pids
from pilotlight.targets.local.supervisor.shim import closing_inheritable
from pilotlight.wire.model_formats import by_name
from pilotlight.wire.unix_socket import peer_pid, unix_address

ENV_SWITCH: Final = "PILOTLIGHT_PILOT_LIGHT"
DEFAULT_FAMILY: Final = "onnxruntime"
IDLE_S: Final = 3600.0
START_DELAY_S: Final = 1.0
MAX_FILES_SCANNED: Final = 200  # of a model's folder
REPLY_S: Final = 10.0  # where a fork takes seconds, a fresh process takes longer still
LOG: Final = logging.getLogger("pilotlight.supervisor")
_FAMILIES: Final = ("torch-export", "torch", "skops", "sklearn", "python")  # the costliest to import first


class ForkRequest(NamedTuple):
    """Request to fork a predictor: arguments, complete environment, and the file for its exit status."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    exit_file: str


def family_of(env: Mapping[str, str]) -> str:
    """Guess the family from the names of the model's files; a wrong guess only costs imports."""
    named = env.get("INFERENCE_MODEL_PATH", "")
    return _family([named]) or _folder_family(named) or DEFAULT_FAMILY


@lru_cache(256)
def _folder_family(folder: str) -> str:
    return _family(islice((file for _, _, files in os.walk(folder) for file in files), MAX_FILES_SCANNED))


def _family(names: Iterable[str]) -> str:
    """Return the family of files by their formats, backends and endings; empty: none."""
    keys = {key for name in names if (row := by_name(name)) for key in (row.name, row.backend, name.rpartition(".")[2])}
    return min(keys & set(_FAMILIES), key=_FAMILIES.index, default="")


def pilot_lights(home: Home, environ: Mapping[str, str] = os.environ) -> "PilotLights | None":
    """Return the pilot lights of a home; None if this machine has none."""
    return PilotLights(home) if forks_replicas(environ) else None


def forks_replicas(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether pilot lights fork replicas here: on Linux, unless PILOTLIGHT_PILOT_LIGHT=off."""
    off = environ.get(ENV_SWITCH, "on").lower() in ("off", "0", "false", "no")
    return not off and sys.platform == "linux"


class PilotLights:
    """Pilot lights of one home; those that an earlier supervisor started are used as they are."""

    def __init__(
        self, home: Home, python: str = sys.executable, idle_s: float = IDLE_S, start_delay_s: float = START_DELAY_S
    ) -> None:
        self._home, self._python, self._idle_s, self._start_delay_s = home, python, idle_s, start_delay_s
        self.pids: dict[str, int] = {}  # of running ones, by family
        self._scheduled: dict[str, asyncio.TimerHandle] = {}
        self._watches: dict[str, ExitWatch] = {}
        self._missed: set[str] = set()  # families requested while their pilot light did not listen
        self._warned: set[str] = set()

    def fork(self, family: str, request: ForkRequest, log: int, answered: Callable[[int], None]) -> None:
        """Fork a predictor; `answered` gets its pid, now or later; 0: not forked, start a fresh process."""
        try:
            connection = self._connect(family)
        except OSError:
            self._schedule_start(family)
            answered(0)
            return
        try:
            socket.send_fds(connection, [json.dumps(request._asdict()).encode() + b"\n"], [log])
        except OSError as error:
            self._warn(family, f"did not accept a request: {error}")
            connection.close()
            answered(0)
            return
        self._await_reply(family, connection, answered)

    def _connect(self, family: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(0.1)  # connecting and sending a few kilobytes do not block
            with unix_address(self._socket(family)) as address:
                connection.connect(address)
            if pid := peer_pid(connection):
                self.pids[family] = pid
            self._missed.discard(family)
        except BaseException:
            connection.close()
            raise
        return connection

    def _await_reply(self, family: str, connection: socket.socket, answered: Callable[[int], None]) -> None:
        """Wait for the reply. After a timeout no process is left: a pilot light kills a child it cannot report."""
        loop = asyncio.get_running_loop()

        def finish(reply: bytes) -> None:
            loop.remove_reader(connection)
            timer.cancel()
            connection.close()
            pid, error = _parse_reply(reply)
            if not pid:
                self._warn(family, error)
            answered(pid)

        connection.setblocking(False)
        timer = loop.call_later(REPLY_S, finish, b'{"error": "did not answer in time"}')
        loop.add_reader(connection, lambda: finish(_receive(connection)))

    def _warn(self, family: str, reason: str) -> None:
        if reason not in self._warned:  # once each: the same reason comes with every start
            self._warned.add(reason)
            LOG.warning("pilot light %s: %s; starting a new process instead", family, reason)

    def _schedule_start(self, family: str) -> None:
        if family in self._watches:  # it is starting, or it has died and its exit is about to be reported
            self._missed.add(family)
        elif family not in self._scheduled:
            loop = asyncio.get_running_loop()
            self._scheduled[family] = loop.call_later(self._start_delay_s, self._start, family)

    def _start(self, family: str) -> None:
        self._scheduled.pop(family, None)
        module = [self._python, "-P", "-m", FORKSERVER]
        options = ["--socket", str(self._socket(family)), "--family", family, "--idle", f"{self._idle_s:g}"]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            pid = os.posix_spawn(
                self._python,
                [*module, *options],
                {**inherited_env(os.environ), ENV_HOME: str(self._home.root)},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(self._home.run / f"pilot-{family}.log"), flags, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    *closing_inheritable(),
                ],
                setsid=True,
            )
        except OSError as error:
            self._warn(family, f"could not be started: {error}")
            return
        self.pids[family] = pid
        self._watches[family] = ExitWatch(pid, lambda: self._on_exit(family, pid))

    def _on_exit(self, family: str, pid: int) -> None:
        """Handle its exit; start another if a predictor of the family was requested in the meantime."""
        self._watches.pop(family, None)
        self.pids.pop(family, None)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        if family in self._missed:
            self._missed.discard(family)
            self._schedule_start(family)

    def close(self, leave_running: bool) -> None:
        """Stop watching; unless `leave_running`, kill them. Their forks continue without a recorded exit."""
        for timer in self._scheduled.values():
            timer.cancel()
        for watch in self._watches.values():
            watch.close()
        if not leave_running:
            for pid in pilot_light_pids(self._home):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                for socket_file in self._home.run.glob("pilot-*.sock"):
                    socket_file.unlink(missing_ok=True)

    def _socket(self, family: str) -> Path:
        return self._home.run / f"pilot-{family}.sock"


def _receive(connection: socket.socket) -> bytes:
    """Receive the reply and close the pidfd that comes with it: the pid cannot have been reused yet."""
    try:
        reply, descriptors, _, _ = socket.recv_fds(connection, 65536, 4)
    except OSError as error:
        return json.dumps({"error": str(error)}).encode()
    for descriptor in descriptors:
        os.close(descriptor)
    return reply


def _parse_reply(reply: bytes) -> tuple[int, str]:
    try:
        document = json.loads(reply)
        return int(document.get("pid", 0)), str(document.get("error", "")) or "no reason given"
    except (ValueError, AttributeError):
        return 0, "exited without a response"
