"""The real predictor as a process of its own, for tests that speak to it from outside.

`RunningServer` starts it on ports of the system's choice, waits until it is ready, and ends it by its process id.
Requests go over sockets that carry exactly the bytes of the test: no library mends them on the way.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.eventually import eventually

from pilotlight.wire import unix_socket

ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0  # a busy machine imports slowly
ANSWER_S = 60.0
CHUNKED = "chunked"
# Set on the machine that runs the tests, they would make another server of it.
FOREIGN = ("INFERENCE_", "PILOTLIGHT_", "K_SERVICE", "K_REVISION", "OTEL_", "HF_")


@dataclass(frozen=True)
class Answer:
    """A reply with its header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        document = self.json()
        return str(document["error"])


class RunningServer:
    """A predictor that serves `repository`; `flags` are further command line arguments."""

    def __init__(self, folder: Path, *flags: str, env: Mapping[str, str] | None = None, ready: bool = True) -> None:
        self._log = folder / "predictor.log"
        command = [sys.executable, "-m", "pilotlight_predictor", "--host", "127.0.0.1", "--http-port", "0"]
        command += ["--metrics-port", "0", "--grpc-port", "-1", "--log-format", "json", *flags]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        with self._log.open("w") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr, cwd=ROOT, env={**clean, **(env or {})})
        try:
            listening = self.wait_for_event("listening")
            self.port, self.metrics_port = int(listening["http_port"]), int(listening["metrics_port"])
            self.host = str(listening["host"])
            if ready:
                self.wait_until(lambda: self.get("/v2/health/ready").status == 200, "ready")
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, Any]]:
        """The lines that were logged so far; one that is being written is none yet."""
        lines = self._log.read_bytes().rpartition(b"\n")[0].decode().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def wait_for_event(self, event: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            found[:] = [line for line in self.log() if line.get("event") == event]
            return bool(found)

        self.wait_until(seen, f"to log {event!r}")
        return found[0]

    def wait_until(self, holds: Any, what: str, timeout_s: float = START_S) -> None:
        def message() -> str:
            log = self._log.read_text()[-6000:]
            return f"the predictor was not {what}, exit code {self.process.poll()}; end of its log:\n{log}"

        def check() -> None:
            if self.process.poll() is not None and not holds():
                raise AssertionError(message())

        eventually(holds, message, timeout_s, pause_s=0.02, check=check)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", path, b"", headers)

    def post(self, path: str, body: Any = b"", headers: Mapping[str, str] | None = None, **how: Any) -> Answer:
        return self.request("POST", path, body, headers, **how)

    def infer(self, model: str, body: Any, headers: Mapping[str, str] | None = None, **how: Any) -> Answer:
        return self.post(f"/v2/models/{model}/infer", body, headers, **how)

    def request(
        self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] | None = None, *, full: bool = False
    ) -> Answer:
        """One request on a connection of its own; `full` sends it chunked, which the full HTTP server reads.

        A body that is not bytes is sent as JSON.
        """
        raw = rendered(method, path, body, headers, self.address, chunked=full)
        with self.connect() as connection:
            connection.sendall(raw)
            return read_answer(connection, method)

    def connect(self, timeout_s: float = ANSWER_S) -> socket.socket:
        if unix_socket.is_unix(self.host):
            connection = unix_socket.connect(self.host, self.port)
            connection.settimeout(timeout_s)
            return connection
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def exchange(self, raw: bytes, answers: int = 1, method: str = "POST", timeout_s: float = ANSWER_S) -> list[Answer]:
        """Sends bytes as they are and reads that many answers from the same connection."""
        with self.connect(timeout_s) as connection:
            connection.sendall(raw)
            return [read_answer(connection, method) for _ in range(answers)]

    def rss_bytes(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS"))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(90)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def rendered(
    method: str, path: str, body: Any, headers: Mapping[str, str] | None, host: str, *, chunked: bool = False
) -> bytes:
    """The request's bytes. Headers of the test win over those that belong there."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        body = json.dumps(body).encode()
    fields = {"Host": host}
    if chunked:
        fields["Transfer-Encoding"] = CHUNKED
    elif body or method == "POST":
        fields["Content-Length"] = str(len(body))
    fields |= dict(headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked and body else b"0\r\n\r\n" if chunked else body
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + bytes(framed)


class Unbuffered:
    """Reads no further than it is asked to, so that the next answer on the connection stays in it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def readline(self, limit: int = -1) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n") and len(line) != limit:
            byte = self._connection.recv(1)
            if not byte:
                break
            line += byte
        return bytes(line)

    def read(self, amount: int = -1) -> bytes:
        """All there is until the end of the connection when no amount is given."""
        data = bytearray()
        while amount < 0 or len(data) < amount:
            piece = self._connection.recv(1 << 20 if amount < 0 else amount - len(data))
            if not piece:
                break
            data += piece
        return bytes(data)

    def close(self) -> None: ...
    def flush(self) -> None: ...


def read_answer(connection: socket.socket, method: str = "POST") -> Answer:
    """The next answer; raises TimeoutError when none comes and ConnectionError when the server hangs up first."""
    response = HTTPResponse(connection, method=method)
    response.fp.close()
    response.fp = Unbuffered(connection)  # type: ignore[assignment]
    try:
        response.begin()
        body = response.read()
    finally:
        response.close()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def json_tensor(name: str, datatype: str, shape: Sequence[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}


def binary_body(document: Mapping[str, Any], *blobs: bytes) -> tuple[bytes, dict[str, str]]:
    """JSON with tensors behind it, and the header that says where they begin."""
    text = json.dumps(document).encode()
    return text + b"".join(blobs), {"Inference-Header-Content-Length": str(len(text))}


def bytes_blob(*items: bytes) -> bytes:
    return b"".join(len(item).to_bytes(4, "little") + item for item in items)
