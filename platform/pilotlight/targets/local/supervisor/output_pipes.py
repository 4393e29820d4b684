"""Pipes between the output of replicas and the log writer of their home (log_writer.py).

The writer is a process of its own and outlives the supervisor, as replicas do. It is started with the first replica,
and again by the housekeeping if it was killed; until then replicas block once their pipes are full.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from pilotlight.observability.bounded_stderr import FILES
from pilotlight.targets.local.home_directory import ENV_HOME, Home
from pilotlight.targets.local.supervisor import log_writer
from pilotlight.targets.local.supervisor.logs import LogSettings, open_log
from pilotlight.targets.local.supervisor.process_inspection import log_writer_pids
from pilotlight.targets.local.supervisor.shim import closing_inheritable

HOLD_S: Final = 10.0
FINISH_S: Final = 2.0  # for the writer to copy the rest of an ended replica's output


class OutputPipes:
    """FIFOs between replicas and the log writer of a home, which is started when it is needed. For one event loop."""

    def __init__(self, home: Home, settings: LogSettings) -> None:
        self._home, self._limit = home, settings.limit
        self._wake_file = home.run / "log-writer.fifo"
        self._writer = 0  # pid, if started here
        self._held: dict[str, int] = {}  # descriptors by log, until the writer has certainly opened the pipe

    def open(self, log: str) -> int:
        pipe = self._pipe(log)
        try:
            Path(log).parent.mkdir(parents=True, exist_ok=True)
            pipe.parent.mkdir(mode=0o700, exist_ok=True)
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe, 0o600)
            # For reading too: without a writer process the replica waits, and does not fail with a broken pipe.
            descriptor = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return open_log(log)
        # The kernel discards what is in a pipe that no process has open: a replica may end before the writer opens it.
        self._release(log)
        self._held[log] = os.dup(descriptor)
        asyncio.get_running_loop().call_later(HOLD_S, self._release, log)
        self.wake()
        os.close(open_log(log))  # the file is there from the start
        return descriptor

    def _release(self, log: str) -> None:
        if (held := self._held.pop(log, -1)) >= 0:
            os.close(held)

    def has(self, log: str) -> bool:
        """Whether the replica of this log writes through a pipe; a job of Slurm writes directly."""
        return self._pipe(log).exists()

    async def finish(self, log: str) -> None:
        """Wait until everything that an ended replica wrote is in its log file."""
        pipe = self._pipe(log)
        ended = pipe.with_name(pipe.name + log_writer.ENDED)
        try:
            pipe.rename(ended)
        except OSError:
            return
        self.wake()
        until, pause = monotonic() + FINISH_S, 0.001
        while ended.exists() and monotonic() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.05)
        self._release(log)

    def end_others(self, living: Collection[str]) -> None:
        """Let the writer finish the pipes of replicas that ended while no supervisor watched."""
        with suppress(OSError):
            for pipe in (self._home.run / "output").iterdir():
                if pipe.name.rpartition("@")[2] not in living and not pipe.name.endswith(log_writer.ENDED):
                    pipe.rename(pipe.with_name(pipe.name + log_writer.ENDED))
            self.wake()

    async def drained(self) -> None:
        """Wait until the writer has copied the rest of all ended replicas' output."""
        until = monotonic() + FINISH_S
        while any((self._home.run / "output").glob(f"*{log_writer.ENDED}")) and monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    def wake(self, message: bytes = b"\n") -> None:
        """Make the writer look for new pipes, or start it; an empty message only checks that it runs."""
        try:
            descriptor = os.open(self._wake_file, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no process reads it, or it does not exist
            self._start()
            return
        try:
            with suppress(BlockingIOError):
                os.write(descriptor, message)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """End the writer, whichever supervisor started it; all replicas have ended, and their logs are complete."""
        self._reap(block=False)
        # One that has just been started has no command line yet and is not found by it.
        for pid in {*log_writer_pids(self._home), self._writer} - {0}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reap(block=True)
        self._wake_file.unlink(missing_ok=True)

    def _pipe(self, log: str) -> Path:
        path = Path(log)
        return self._home.run / "output" / "@".join((path.parent.parent.name, path.parent.name, path.stem))

    def _start(self) -> None:
        """Start a writer; where that fails, replicas wait with full pipes until the next attempt."""
        self._reap(block=False)
        if self._writer:
            return  # it is about to open its files
        with suppress(OSError):
            if not self._wake_file.exists():
                os.mkfifo(self._wake_file, 0o600)
            self._writer = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", log_writer.__file__, "--home", str(self._home.root),
                 "--limit", str(self._limit), "--files", str(FILES)],
                {ENV_HOME: str(self._home.root)},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)
                ] + closing_inheritable(),
                setsid=True,
            )  # fmt: skip

    def _reap(self, *, block: bool) -> None:
        with suppress(ChildProcessError):
            if self._writer and os.waitpid(self._writer, 0 if block else os.WNOHANG)[0]:
                self._writer = 0
            return
        self._writer = 0
