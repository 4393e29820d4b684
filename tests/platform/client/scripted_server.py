"""A server on a real socket that answers each request by a script, and so misbehaves as a test needs it."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

METADATA = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}], "outputs": []}
RESULT = {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [2.0]}]}
CLOSE = b""  # in a script: take the request and close the connection
SILENCE = None  # in a script: take the request and send nothing


def reply(status: int, document: Any, headers: Mapping[str, str] | None = None) -> bytes:
    body = json.dumps(document).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"HTTP/1.1 {status} Some\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def starting(words: str = "initializing", after: str = "1") -> bytes:
    return reply(503, {"error": words}, {"Retry-After": after})


@dataclass
class Scripted:
    """`requests` are the heads that came, `bodies` what followed them; `connections` how many there were."""

    listener: socket.socket
    url: str
    script: list[bytes | None]
    requests: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: list[socket.socket] = field(default_factory=list)

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                self.open.append(connection)
                threading.Thread(target=self.converse, args=[connection], daemon=True).start()

    def converse(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while line := stream.readline():
                head = line
                while (line := stream.readline()) not in (b"\r\n", b""):
                    head += line
                lengths = [
                    each.split(b":")[1] for each in head.lower().split(b"\r\n") if each.startswith(b"content-length")
                ]
                self.bodies.append(stream.read(int(lengths[0]) if lengths else 0))
                self.requests.append(head.decode())
                answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if answer == CLOSE:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                if answer is not None:
                    connection.sendall(answer)


@contextmanager
def scripted(*script: bytes | None) -> Iterator[Scripted]:
    """Answer requests in the script's order; its last entry answers all that follow."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Scripted(listener, f"http://127.0.0.1:{listener.getsockname()[1]}", list(script))
        threading.Thread(target=server.serve, daemon=True).start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in server.open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
