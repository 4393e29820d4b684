"""Asks pilot lights to fork predictors, and sees to it that one burns for each family of models that is used.

A pilot light (`python -m pilotlight_predictor.pilot_light`) has imported a family's libraries and forks in
milliseconds what would take a fresh process tenths of a second. It is started a moment after the first predictor of
its family, which it would otherwise compete with; ends itself when idle for long; and is never relied upon: whatever it
cannot do is done by a fresh process.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from pilotlight.targets.local.home import ENV_HOME, Home
from pilotlight.targets.local.supervisor.environment import passed
from pilotlight.targets.local.supervisor.process import ExitWatch, pilots, usage
from pilotlight.targets.local.supervisor.shim import closing_inheritable
from pilotlight.wire.unix import peer_pid, unix_address

ENV_SWITCH: Final = "PILOTLIGHT_PILOT_LIGHT"
FAMILY: Final = "onnxruntime"
IDLE_S: Final = 3600.0
LIGHT_AFTER_S: Final = 1.0
LOOKED_AT: Final = 200  # files of a model's folder
REPLY_S: Final = 10.0  # a fresh process takes longer still on a machine where a fork takes seconds
LOG: Final = logging.getLogger("pilotlight.supervisor")
_SUFFIXES: Final = {".pt": "torch", ".pt2": "torch", ".pth": "torch", ".safetensors": "torch", ".py": "python"}


class Errand(NamedTuple):
    """What a fork shall become: the predictor's arguments, its whole environment, and where its end is noted."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    exit_file: str


def family_of(env: Mapping[str, str]) -> str:
    """By the name of the model's file, or of one in its folder. A wrong guess costs the time of an import, no more."""
    named = env.get("INFERENCE_MODEL_PATH", "")
    return _SUFFIXES.get(PurePosixPath(named).suffix) or _SUFFIXES.get(_within(named), FAMILY)


@lru_cache(256)
def _within(folder: str) -> str:
    """The first ending that tells, of the files of a folder of this machine. Torch is what costs most to import."""
    names = islice((file for _, _, files in os.walk(folder) for file in files), LOOKED_AT)
    endings = {PurePosixPath(name).suffix for name in names}
    return min(endings & _SUFFIXES.keys(), key=lambda ending: _SUFFIXES[ending] != "torch", default="")


def pilot_lights(home: Home, environ: Mapping[str, str] = os.environ) -> "PilotLights | None":
    """None where they are switched off (PILOTLIGHT_PILOT_LIGHT=off) or cannot be: they need Linux."""
    off = environ.get(ENV_SWITCH, "on").lower() in ("off", "0", "false", "no")
    return None if off or sys.platform != "linux" else PilotLights(home)


class PilotLights:
    """All of one home. One that a supervisor before us has lit is used as it is."""

    def __init__(
        self, home: Home, python: str = sys.executable, idle_s: float = IDLE_S, light_after_s: float = LIGHT_AFTER_S
    ) -> None:
        self._home, self._python, self._idle_s, self._after_s = home, python, idle_s, light_after_s
        self.pids: dict[str, int] = {}  # of those that burn, by family
        self._lighting: dict[str, asyncio.TimerHandle] = {}
        self._watches: dict[str, ExitWatch] = {}
        self._missed: set[str] = set()  # families asked for while one was there that did not listen
        self._told: set[str] = set()

    def fork(self, family: str, errand: Errand, log: int, answered: Callable[[int], None]) -> None:
        """`answered` gets the number of the process, now or in a moment; 0: none was forked, start it otherwise."""
        try:
            connection = self._connect(family)
        except OSError:
            self._light_soon(family)
            answered(0)
            return
        try:
            socket.send_fds(connection, [json.dumps(errand._asdict()).encode() + b"\n"], [log])
        except OSError as error:
            self._refused(family, f"took no order: {error}")
            connection.close()
            answered(0)
            return
        self._await_reply(family, connection, answered)

    def _connect(self, family: str) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(0.1)  # neither connecting nor a few kilobytes make anybody wait
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
        """A pilot light ends a child of whose birth it could tell nobody, so that giving up leaves none behind."""
        loop = asyncio.get_running_loop()

        def finish(reply: bytes) -> None:
            loop.remove_reader(connection)
            timer.cancel()
            connection.close()
            pid, error = _read(reply)
            if not pid:
                self._refused(family, error)
            answered(pid)

        connection.setblocking(False)
        timer = loop.call_later(REPLY_S, finish, b'{"error": "did not answer in time"}')
        loop.add_reader(connection, lambda: finish(_receive(connection)))

    def _refused(self, family: str, reason: str) -> None:
        """Aloud, but each reason once: it would come back with every start."""
        if reason not in self._told:
            self._told.add(reason)
            LOG.warning("pilot light %s: %s; a fresh process is started instead", family, reason)

    def _light_soon(self, family: str) -> None:
        """One that does not listen is about to, or it has died and we are about to hear of it."""
        if family in self._watches:
            self._missed.add(family)
        elif family not in self._lighting:
            loop = asyncio.get_running_loop()
            self._lighting[family] = loop.call_later(self._after_s, self._light, family)

    def _light(self, family: str) -> None:
        self._lighting.pop(family, None)
        module = [self._python, "-P", "-m", "pilotlight_predictor.pilot_light", "--socket", str(self._socket(family))]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            pid = os.posix_spawn(
                self._python,
                [*module, "--family", family, "--idle", f"{self._idle_s:g}"],
                {**passed(os.environ), ENV_HOME: str(self._home.root)},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(self._home.run / f"pilot-{family}.log"), flags, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    *closing_inheritable(),
                ],
                setsid=True,
            )
        except OSError as error:
            self._refused(family, f"could not be lit: {error}")
            return
        self.pids[family] = pid
        self._watches[family] = ExitWatch(pid, lambda: self._out(family, pid))

    def _out(self, family: str, pid: int) -> None:
        """Idle, or dead: the next predictor of the family lights it again, or one that came before we knew."""
        self._watches.pop(family, None)
        self.pids.pop(family, None)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        if family in self._missed:
            self._missed.discard(family)
            self._light_soon(family)

    def memory(self) -> dict[str, int]:
        """Resident bytes of each that burns, apart from what it forked."""
        return {family: usage(pid, descendants=False).resident_bytes for family, pid in self.pids.items()}

    def close(self, leave_burning: bool) -> None:
        """Puts them out, unless another supervisor comes. What they forked goes on, but nobody would note its end."""
        for timer in self._lighting.values():
            timer.cancel()
        for watch in self._watches.values():
            watch.close()
        if not leave_burning:
            for pid in list(pilots(self._home)):
                self._put_out(pid)

    def _put_out(self, pid: int) -> None:
        """It has nothing to finish. Those that a control process before us has lit go too, and those that no longer
        listen because their code was replaced."""
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        for socket_file in self._home.run.glob("pilot-*.sock"):
            socket_file.unlink(missing_ok=True)

    def _socket(self, family: str) -> Path:
        return self._home.run / f"pilot-{family}.sock"


def _receive(connection: socket.socket) -> bytes:
    """The reply brings a descriptor of the process along; its number is enough while it cannot have been reaped."""
    try:
        reply, descriptors, _, _ = socket.recv_fds(connection, 65536, 4)
    except OSError as error:
        return json.dumps({"error": str(error)}).encode()
    for descriptor in descriptors:
        os.close(descriptor)
    return reply


def _read(reply: bytes) -> tuple[int, str]:
    try:
        document = json.loads(reply)
        return int(document.get("pid", 0)), str(document.get("error", "")) or "gave no reason"
    except (ValueError, AttributeError):
        return 0, "ended without an answer"
