"""`python -m pilotlight_predictor.pilot_light --socket PATH`: forks predictors, which then need not import anything.

It imports everything first (preload.py) and then listens on a unix socket of its user alone. Each connection carries
one line of JSON and gets one back:

    {"argv": [...], "env": {...}, "cwd": "…", "exit_file": "…"} + the log's descriptor  →  {"pid": 4711} + a pidfd
    {"report": true}                                                                →  {"rss": …, "pss": …, …}
    anything that cannot be done                                                    →  {"error": "one sentence"}

A child becomes a predictor (forked.py). The pilot light stays one plain thread: no event loop, no CUDA; it counts its
threads before each fork and refuses when there are more. It reaps its children, writes how each ended, and ends itself
when none is left and nobody asked for `--idle` seconds. Linux only.
"""

import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Final, Self

from pilotlight_predictor import forked, preload
from pilotlight_predictor.logs import configure, log
from pilotlight_predictor.pilot_socket import listen, receive, send

REQUEST_S: Final = 1.0  # who asks sends at once; meanwhile nobody else is served
IDLE_S: Final = 300.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class PilotLight:
    """Between `with` and its end: one listening socket and the children that were asked for."""

    def __init__(self, path: Path, family: str, idle_s: float) -> None:
        self._path, self._family, self._idle_s = path, family, idle_s
        self._children: dict[int, tuple[int, str]] = {}  # pidfd → pid and exit file
        self._forks = 0
        self._ending = self._withdrawn = False
        self._sources = preload.sources()
        self._last_asked = monotonic()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._listener = listen(path)
        self._inode = path.stat().st_ino

    def __enter__(self) -> Self:
        for end in (self._wake, self._woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._told_to_end)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """In a child too: nothing that belongs to the pilot light stays open there."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        self._selector.close()
        for end in (self._wake, self._woken, self._listener):
            end.close()
        for pidfd in self._children:
            os.close(pidfd)

    def serve(self) -> tuple[forked.Errand, int] | None:
        """Returns None at its own end, and in a forked child what that shall become, with its log's descriptor."""
        while not self._ending and not self._done():
            for key, _ in self._selector.select(self._patience()):
                if key.fileobj is self._listener:
                    task = self._answer_next()
                    if task is not None:
                        return task
                elif key.fileobj is not self._wake:
                    self._reap(key.fd)
        self._end()
        return None

    def _told_to_end(self, number: int, frame: FrameType | None) -> None:
        self._ending = True

    def _done(self) -> bool:
        return not self._children and (self._withdrawn or monotonic() - self._last_asked >= self._idle_s)

    def _patience(self) -> float | None:
        return None if self._children else max(0.0, self._last_asked + self._idle_s - monotonic())

    def _withdraw(self) -> None:
        """Nobody is sent here any more, so that a successor can be lit; its socket is left alone."""
        self._withdrawn = True
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _end(self) -> None:
        """What is known is written; living children find another parent."""
        self._withdraw()
        for pidfd in list(self._children):
            self._reap(pidfd)
        log("stopped", f"the pilot light ends; {len(self._children)} predictors go on", forks=self._forks)

    def _answer_next(self) -> tuple[forked.Errand, int] | None:
        """Serves one connection; in a child, its task."""
        with suppress(OSError), self._listener.accept()[0] as connection:
            connection.settimeout(REQUEST_S)
            descriptors: list[int] = []
            try:
                document = receive(connection, descriptors)
                if document.get("report"):
                    send(connection, self._report())
                    return None
                self._last_asked = monotonic()
                return self._fork(forked.errand(document), descriptors, connection)
            except (ValueError, OSError) as error:
                send(connection, {"error": str(error)})
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        return None

    def _fork(
        self, task: forked.Errand, descriptors: list[int], connection: socket.socket
    ) -> tuple[forked.Errand, int] | None:
        """Signals wait meanwhile: one that meets the child before it is itself would be taken for the pilot light's."""
        if len(descriptors) != 1:
            raise ValueError(f"{len(descriptors)} descriptors came along, must be one: the log's")
        self._check(task)
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            return task, descriptors.pop()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._adopt(pid, task.exit_file, connection)
        return None

    def _check(self, task: forked.Errand) -> None:
        """Raises ValueError where only a fresh process would be right."""
        path = preload.replaced(self._sources)
        if path is not None:
            self._withdraw()
            raise ValueError(f"{path} has been replaced since the pilot light was lit; another can be lit in its place")
        threads = preload.threads()
        if len(threads) > 1:
            raise ValueError(f"the pilot light has {len(threads)} threads and cannot fork safely: {', '.join(threads)}")
        name = preload.misfit(self._family, task.env, os.environ)
        if name is not None:
            raise ValueError(f"{name} counts only when a process starts, and the pilot light started without it")

    def _adopt(self, pid: int, exit_file: str, connection: socket.socket) -> None:
        """A child whose birth nobody heard of is ended: whoever asked will start another."""
        self._forks += 1
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        try:
            send(connection, {"pid": pid}, pidfd)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            exit_file = os.devnull
        self._children[pidfd] = pid, exit_file
        self._selector.register(pidfd, selectors.EVENT_READ)

    def _reap(self, pidfd: int) -> None:
        pid, exit_file = self._children[pidfd]
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return
        del self._children[pidfd]
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._last_asked = monotonic()
        if exit_file != os.devnull:
            write_exit(Path(exit_file), status)

    def _report(self) -> dict[str, Any]:
        """Bytes in memory: `pss` counts what is shared with children only in part."""
        with open("/proc/self/smaps_rollup") as rollup:
            kilobytes = {line.split(":")[0].lower(): line.split()[1] for line in rollup if line.endswith("kB\n")}
        memory = {name: int(kilobytes[name]) * 1024 for name in ("rss", "pss")}
        return {**memory, "children": len(self._children), "forks": self._forks, "family": self._family}


def write_exit(path: Path, status: int) -> None:
    """How a child ended, as a shell says it: its exit code, or 128 and the signal. Complete or not there at all."""
    code = os.waitstatus_to_exitcode(status)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.write_text(f"{code if code >= 0 else 128 - code}\n")
        beside.replace(path)
    except OSError as error:
        log("exit.unwritten", f"{path} could not be written: {error}", level="ERROR")


def main(argv: list[str]) -> int:
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="python -m pilotlight_predictor.pilot_light", description="forks predictors")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket to listen on")
    parser.add_argument("--family", choices=tuple(preload.FAMILIES), default="onnxruntime", help="what to import")
    parser.add_argument("--idle", type=float, default=IDLE_S, help=f"seconds without work before it ends ({IDLE_S:g})")
    options = parser.parse_args(argv)
    configure(format="json")
    if sys.platform != "linux":
        log("failed", "a pilot light needs Linux: start predictors without it", level="ERROR")
        return 1
    preload.preload(options.family)
    try:
        with PilotLight(options.socket, options.family, options.idle) as pilot:
            log("listening", family=options.family, socket=str(options.socket))
            task = pilot.serve()
    except OSError as error:
        log("failed", str(error), level="ERROR")
        return 1
    if task is not None:
        forked.become(*task)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
