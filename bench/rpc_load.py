"""Closed-loop gRPC load: `python -m bench.rpc_load`, on its own core, as wrk is for HTTP.

It speaks just enough HTTP/2 to repeat one unary call with frames that are made once, so that it costs a small part of
what any server needs for the same call: a gRPC library here would be measured instead of the server. A call has failed
that is not answered by a message of the length of the right answer. It prints the same RESULT line as request.lua.
"""

import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

METHOD: Final = b"/inference.GRPCInferenceService/ModelInfer"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 0x1
END_HEADERS: Final = 0x4
WIDE: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(authority: bytes) -> bytes:
    """HPACK without a table that changes: POST and http by their index, everything else spelled out."""

    def text(value: bytes) -> bytes:
        return bytes([len(value)]) + value

    kind = b"\x0f\x10" + text(b"application/grpc")  # the name content-type is entry 31
    return b"\x83\x86\x04" + text(METHOD) + b"\x01" + text(authority) + kind + b"\x00" + text(b"te") + text(b"trailers")


class Connection:
    """One connection with one call under way."""

    def __init__(self, port: int, message: bytes, expected: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = header_block(b"127.0.0.1:%d" % port)
        self._body = b"\0" + struct.pack(">I", len(message)) + message
        self._expected, self._buffer = expected + 5, b""
        self._stream, self._received, self._window = -1, 0, DEFAULT_WINDOW
        self.started = 0.0
        wide = frame(SETTINGS, 0, 0, struct.pack(">HIHI", 2, 0, 4, WIDE))
        self.socket.sendall(PREFACE + wide + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDE - DEFAULT_WINDOW)))

    def call(self) -> None:
        self._stream += 2
        self._received = 0
        self._window -= len(self._body)
        if self._window < 0:
            raise ConnectionError("the server takes no more bytes though all calls are answered")
        self.started = time.perf_counter()
        opened = frame(HEADERS, END_HEADERS, self._stream, self._head)
        self.socket.sendall(opened + frame(DATA, END_STREAM, self._stream, self._body))

    def read(self) -> bool | None:
        """Whether the call under way succeeded; None while it is not over."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server hung up")
        buffer, at, verdict = self._buffer + data, 0, None
        while len(buffer) - at >= 9:
            length = int.from_bytes(buffer[at : at + 3], "big")
            if len(buffer) - at < 9 + length:
                break
            kind, flags, stream = struct.unpack_from(">BBI", buffer, at + 3)
            ended = self._take(kind, flags, stream, buffer[at + 9 : at + 9 + length])
            verdict = ended if ended is not None else verdict
            at += 9 + length
        self._buffer = buffer[at:]
        return verdict

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bool | None:
        if kind == DATA:
            self._received += len(payload)
        elif kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload, "big")
        elif kind == GOAWAY:
            raise ConnectionError("the server sent GOAWAY")
        if stream == self._stream and (kind == RST_STREAM or (kind in {HEADERS, DATA} and flags & END_STREAM)):
            return kind != RST_STREAM and self._received == self._expected
        return None


def repeat(connections: Sequence[Connection], seconds: float) -> tuple[list[float], int, float]:
    """Seconds of each answered call, how many failed, and how long it took."""
    took: list[float] = []
    errors = 0
    selector = selectors.DefaultSelector()
    for each in connections:
        selector.register(each.socket, selectors.EVENT_READ, each)
        each.call()
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        for key, _ in selector.select(began + seconds - now):
            verdict = key.data.read()
            if verdict is not None:
                took.append(time.perf_counter() - key.data.started)
                errors += not verdict
                key.data.call()
    return took, errors, time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    port, connections, seconds, expected, body = arguments
    message = Path(body).read_bytes()
    made = [Connection(int(port), message, int(expected)) for _ in range(int(connections))]
    took, errors, elapsed = repeat(made, float(seconds))
    took.sort()
    result = {
        "requests": len(took), "duration_us": elapsed * 1e6, "p50_us": _at(took, 0.5), "p99_us": _at(took, 0.99),
        "status": errors, "connect": 0, "read": 0, "write": 0, "timeout": 0,
    }  # fmt: skip
    print(f"RESULT {json.dumps(result)}")
    return 0


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6 if ordered else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
