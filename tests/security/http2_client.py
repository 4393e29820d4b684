"""Frames of HTTP/2 as an attacker sends them: no library corrects them on the way."""

import socket
from types import TracebackType
from typing import Self

from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.hpack import literal

HEAD = b"\x83\x86" + b"".join((
    literal(":path", "/inference.GRPCInferenceService/ModelInfer"), literal(":authority", "localhost"),
    literal("te", "trailers"), literal("content-type", "application/grpc"),
))  # fmt: skip


def header(name: str, value: str) -> bytes:
    return literal(name, value)


class Http2Client:
    """A connection whose preface is sent."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.sendall(frames.PREFACE + frames.settings({}))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.socket.close()

    def open(self, stream: int, extra: bytes = b"") -> None:
        self.socket.sendall(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, HEAD + extra))

    def data(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        pieces = [data[at : at + (1 << 14)] for at in range(0, len(data), 1 << 14)]
        for piece in pieces:
            flags = frames.END_STREAM if ends and piece is pieces[-1] else 0
            self.socket.sendall(frames.frame(frames.DATA, flags, stream, piece))

    def read_until(self, text: bytes) -> bytes:
        """Return what was received up to `text`, or to the end of the connection."""
        received = b""
        while text not in received and (more := self.socket.recv(1 << 16)):
            received += more
        return received
