"""`python -m pilotlight_predictor.bootstrap.forkserver --socket PATH`: forks predictors, which skip their imports.

The pilot light imports everything first (preload.py), then listens on a unix socket with mode 0600. Each connection
carries one line of JSON and gets one back:

    {"argv": [...], "env": {...}, "cwd": "…", "exit_file": "…"} + the log's descriptor  →  {"pid": 4711} + a pidfd
    {"report": true}                                                                →  {"rss": …, "pss": …, …}
    any failure                                                                     →  {"error": "one sentence"}

A child becomes a predictor (forked_child.py). The pilot light stays single-threaded, without event loop or CUDA, and
checks that before each fork. It reaps its children, writes their exit codes, and exits when it has no children and had
no request for `--idle` seconds. Linux only.
"""

import json
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

from pilotlight.wire import unix_socket
from pilotlight_predictor.bootstrap import forked_child, preload
from pilotlight_predictor.observability.logs import configure, log

BACKLOG: Final = 64
REQUEST_LIMIT: Final = 1 << 20  # an environment is a few kilobytes
REQUEST_TIMEOUT_S: Final = 1.0  # clients send at once; other connections wait for this one
IDLE_S: Final = 300.0
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def listen(path: Path) -> socket.socket:
    """Listen on a socket that only its owner can open; replace one that a dead process left behind."""
    with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError, FileNotFoundError):
        with unix_socket.unix_address(path) as address:
            probe.connect(address)
        raise OSError(f"another pilot light uses {path}")
    return unix_socket.listen(path, BACKLOG)


def receive(connection: socket.socket, descriptors: list[int]) -> dict[str, Any]:
    """Read one line of JSON; append attached descriptors, which the caller closes, also after an error."""
    text = b""
    while not text.endswith(b"\n"):
        chunk, received, _, _ = socket.recv_fds(connection, 1 << 16, 4)
        descriptors += received
        text += chunk
        if not chunk or len(text) > REQUEST_LIMIT:
            raise ValueError(f"a request must be one line of JSON of at most {REQUEST_LIMIT} bytes")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("a request must be a JSON object")
    return document


def send(connection: socket.socket, document: dict[str, Any], descriptor: int | None = None) -> None:
    line = json.dumps(document).encode() + b"\n"
    socket.send_fds(connection, [line], [] if descriptor is None else [descriptor])


class PilotLight:
    """Context manager of the listening socket and the forked children."""

    def __init__(self, path: Path, family: str, idle_s: float) -> None:
        self._path, self._family, self._idle_s = path, family, idle_s
        self._children: dict[int, tuple[int, str]] = {}  # pidfd → pid and exit file
        self._forks = 0
        self._stopping = self._unlinked = False
        self._sources = preload.source_mtimes()
        self._last_activity = monotonic()
        self._selector = selectors.DefaultSelector()
        self._signal_reader, self._signal_writer = socket.socketpair()
        self._listener = listen(path)
        self._inode = path.stat().st_ino

    def __enter__(self) -> Self:
        for end in (self._signal_reader, self._signal_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._signal_writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._signal_reader, selectors.EVENT_READ)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close all descriptors and restore signal handlers, also in a forked child."""
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        self._selector.close()
        for end in (self._signal_reader, self._signal_writer, self._listener):
            end.close()
        for pidfd in self._children:
            os.close(pidfd)

    def serve(self) -> tuple[forked_child.ForkRequest, int] | None:
        """Serve until idle or signalled and return None; in a forked child return its request and log descriptor."""
        while not self._stopping:
            if not self._children and (self._unlinked or monotonic() - self._last_activity >= self._idle_s):
                break
            idle_in = None if self._children else max(0.0, self._last_activity + self._idle_s - monotonic())
            for key, _ in self._selector.select(idle_in):
                if key.fileobj is self._listener:
                    child = self._handle_connection()
                    if child is not None:
                        return child
                elif key.fileobj is not self._signal_reader:
                    self._reap(key.fd)
        self._unlink_socket()
        for pidfd in list(self._children):  # those that run on are reparented
            self._reap(pidfd)
        log("stopped", f"the pilot light exits; {len(self._children)} predictors keep running", forks=self._forks)
        return None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _unlink_socket(self) -> None:
        """Remove our socket so that a successor can start; leave a successor's socket alone."""
        self._unlinked = True
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _handle_connection(self) -> tuple[forked_child.ForkRequest, int] | None:
        """Serve one connection; in a forked child return as `serve` does."""
        with suppress(OSError), self._listener.accept()[0] as connection:
            connection.settimeout(REQUEST_TIMEOUT_S)
            descriptors: list[int] = []
            try:
                document = receive(connection, descriptors)
                if document.get("report"):
                    send(connection, self._report())
                    return None
                self._last_activity = monotonic()
                return self._fork(forked_child.parse_request(document), descriptors, connection)
            except (ValueError, OSError) as error:
                send(connection, {"error": str(error)})
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        return None

    def _fork(
        self, request: forked_child.ForkRequest, descriptors: list[int], connection: socket.socket
    ) -> tuple[forked_child.ForkRequest, int] | None:
        """Fork with signals blocked: until the child resets its handlers it would treat one as the pilot light's."""
        if len(descriptors) != 1:
            raise ValueError(f"{len(descriptors)} descriptors were sent, must be one: the log's")
        self._check_forkable(request)
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        pid = os.fork()
        if pid == 0:
            return request, descriptors.pop()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._register_child(pid, request.exit_file, connection)
        return None

    def _check_forkable(self, request: forked_child.ForkRequest) -> None:
        """Raise ValueError if the request needs a fresh process."""
        path = preload.changed_file(self._sources)
        if path is not None:
            self._unlink_socket()
            raise ValueError(f"{path} was replaced after the pilot light started; start another pilot light")
        threads = preload.thread_names()
        if len(threads) > 1:
            raise ValueError(f"the pilot light has {len(threads)} threads and cannot fork safely: {', '.join(threads)}")
        name = preload.mismatched_variable(self._family, request.env, os.environ)
        if name is not None:
            raise ValueError(f"{name} is read at process start only, and the pilot light started without it")

    def _register_child(self, pid: int, exit_file: str, connection: socket.socket) -> None:
        """Send pid and pidfd to the client; kill the child if that fails, since the client will start another."""
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
        exited, status = os.waitpid(pid, os.WNOHANG)
        if not exited:
            return
        del self._children[pidfd]
        self._selector.unregister(pidfd)
        os.close(pidfd)
        self._last_activity = monotonic()
        if exit_file != os.devnull:
            write_exit(Path(exit_file), status)

    def _report(self) -> dict[str, Any]:
        """Memory in bytes (`pss` counts pages shared with children proportionally), children and forks."""
        with open("/proc/self/smaps_rollup") as rollup:
            kilobytes = {line.split(":")[0].lower(): line.split()[1] for line in rollup if line.endswith("kB\n")}
        memory = {name: int(kilobytes[name]) * 1024 for name in ("rss", "pss")}
        return {**memory, "children": len(self._children), "forks": self._forks, "family": self._family}


def write_exit(path: Path, status: int) -> None:
    """Write a child's exit code atomically, as a shell reports it: the code, or 128 + the signal number."""
    code = os.waitstatus_to_exitcode(status)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(f"{code if code >= 0 else 128 - code}\n")
        temporary.replace(path)
    except OSError as error:
        log("exit.unwritten", f"{path} could not be written: {error}", level="ERROR")


def main(argv: list[str]) -> int:
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="python -m pilotlight_predictor.bootstrap.forkserver", description="forks predictors")
    parser.add_argument("--socket", type=Path, required=True, help="unix socket to listen on")
    parser.add_argument("--family", choices=tuple(preload.FAMILIES), default="onnxruntime", help="what to import")
    parser.add_argument("--idle", type=float, default=IDLE_S, help=f"idle seconds before it exits ({IDLE_S:g})")
    options = parser.parse_args(argv)
    configure(format="json")
    if sys.platform != "linux":
        log("failed", "the pilot light needs Linux: start predictors without it", level="ERROR")
        return 1
    preload.preload(options.family)
    try:
        with PilotLight(options.socket, options.family, options.idle) as pilot:
            log("listening", f"listening on {options.socket}", family=options.family, socket=str(options.socket))
            child = pilot.serve()
    except OSError as error:
        log("failed", str(error), level="ERROR")
        return 1
    if child is not None:
        forked_child.run_predictor(*child)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
