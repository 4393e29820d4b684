"""A real pilot light and the predictors that it forks, for tests that speak to both from outside."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.eventually import eventually
from tests.serving import FOREIGN, ROOT, Answer, read_answer, rendered

PATIENCE_S = 120.0  # the first import of torch on a cold disk takes most of a minute


THREADS = ("MKL_", "OMP_", "OPENBLAS_", "ORT_")


def clean_environment() -> dict[str, str]:
    """What a supervisor would pass: neither our settings nor switches of the machine for Python and its libraries."""
    return {name: value for name, value in os.environ.items() if not name.startswith((*FOREIGN, *THREADS, "PYTHON"))}


class Forked:
    """A predictor that a pilot light has forked; ended by its number."""

    def __init__(self, pid: int, log: Path, exit_file: Path) -> None:
        self.pid, self._log, self._exit_file = pid, log, exit_file

    def text(self) -> str:
        return self._log.read_text()

    def event(self, name: str) -> dict[str, Any]:
        """The first line of its log with this event, once it is there."""

        def seen() -> dict[str, Any] | None:
            whole = self.text().rpartition("\n")[0]  # without a line that is being written
            lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
            return next((line for line in lines if line["event"] == name), None)

        try:
            found: dict[str, Any] = eventually(seen, name)
        except AssertionError:
            raise AssertionError(f"no {name!r} in its log:\n{self.text()[-4000:]}") from None
        return found

    def request(self, method: str, path: str, body: Any = b"", port: int = 0, *, chunked: bool = False) -> Answer:
        with self.send(method, path, body, port, chunked=chunked) as connection:
            return read_answer(connection, method)

    def send(self, method: str, path: str, body: Any = b"", port: int = 0, *, chunked: bool = False) -> socket.socket:
        """The connection, on which the answer is still to come."""
        port = port or self.event("listening")["http_port"]
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(rendered(method, path, body, None, f"127.0.0.1:{port}", chunked=chunked))
        return connection

    def infer(self, model: str, name: str, datatype: str, data: list[Any]) -> Any:
        """The data of the first output."""
        tensor = {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}
        answer = self.request("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
        assert answer.status == 200, answer.body
        return answer.json()["outputs"][0]["data"]

    def exit_status(self) -> str:
        eventually(self._exit_file.exists, "the exit file")
        return self._exit_file.read_text()

    def end(self) -> None:
        """One that has ended already is left alone: its number may be another's by now."""
        if not self._exit_file.exists():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class RunningPilotLight:
    """`interpreter` are options of Python itself; `code` runs in place of the module's own command."""

    def __init__(
        self,
        folder: Path,
        family: str,
        idle_s: float = 60.0,
        *,
        interpreter: tuple[str, ...] = (),
        code: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.socket = folder / "pilot.sock"
        self._count = 0
        self.children: list[Forked] = []
        what = ["-c", code] if code else ["-m", "pilotlight_predictor.bootstrap.forkserver"]
        options = ["--socket", str(self.socket), "--family", family, "--idle", str(idle_s)]
        with (folder / "pilot.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *interpreter, *what, *options],
                stderr=log,
                cwd=ROOT,
                env={**clean_environment(), **(env or {})},
            )
        try:
            eventually(lambda: self.socket.exists() or self.process.poll() is not None, "the pilot light's socket")
        except BaseException:
            self.close()
            raise

    def fork(self, *argv: str, **env: str) -> Forked:
        pid = self.try_fork(*argv, **env)["pid"]
        self.children.append(Forked(pid, self._file("log"), self._file("exit")))
        return self.children[-1]

    def try_fork(self, *argv: str, **env: str) -> dict[str, Any]:
        self._count += 1
        flags = ["--host", "127.0.0.1", "--http-port", "0", "--metrics-port", "0", "--grpc-port", "-1"]
        flags = [] if argv[:1] in {("compile",), ("fetch",)} else flags
        whole = {**clean_environment(), "INFERENCE_LOG_FORMAT": "json", **env}
        request = {"argv": [*flags, *argv], "env": whole, "cwd": str(self.folder), "exit_file": str(self._file("exit"))}
        with self._file("log").open("wb") as log:
            return self.ask(request, log.fileno())

    def _file(self, kind: str) -> Path:
        return self.folder / f"{self._count}.{kind}"

    def ask(self, request: Any, *descriptors: int) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with self.sent(request, *descriptors) as connection:
                answer: dict[str, Any] = json.loads(connection.makefile().readline())
            # "timed out": this process was stopped before it sent, and nothing was forked.
            if answer.get("error") != "timed out" or time.monotonic() > deadline:
                return answer

    def sent(self, request: Any, *descriptors: int, deaf: bool = False) -> socket.socket:
        """`deaf`: nobody reads what comes back, from the beginning on."""
        line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(self.socket))
        if deaf:
            connection.shutdown(socket.SHUT_RD)
        socket.send_fds(connection, [line], list(descriptors))
        return connection

    def report(self) -> dict[str, Any]:
        return self.ask({"report": True})

    def log(self) -> str:
        return (self.folder / "pilot.log").read_text()

    def close(self) -> None:
        for child in self.children:
            child.end()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
