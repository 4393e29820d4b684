"""A client of the gRPC port that writes its frames itself."""

import socket
import struct

from pilotlight.wire.http2 import frames as http2_frames
from pilotlight.wire.http2.hpack import literal

LIVE = "/inference.GRPCInferenceService/ServerLive"


def called(path: str) -> bytes:
    fields = ((":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc"))
    return b"".join(literal(*field) for field in fields)


CALL = called(LIVE)


class Raw:
    """A client that says what it likes."""

    def __init__(self, address: str, start: bytes = http2_frames.PREFACE + http2_frames.settings({})) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(start)

    def say(self, *frames: bytes) -> "Raw":
        self.socket.sendall(b"".join(frames))
        return self

    def hear(self, kind: int, number: int | None = None) -> tuple[int, bytes]:
        """Flags and payload of the next frame of this kind."""
        while True:
            found, flags, of, payload = self._frame()
            if found == kind and number in (None, of):
                return flags, payload

    def next(self) -> tuple[int, int]:
        """Kind and stream of the next frame."""
        kind, _, number, _ = self._frame()
        return kind, number

    def _frame(self) -> tuple[int, int, int, bytes]:
        word, flags, number = http2_frames.HEAD.unpack(self._exactly(http2_frames.HEAD_LENGTH))
        return word & 0xFF, flags, number, self._exactly(word >> 8)

    def rest(self) -> bytes:
        parts = []
        while part := self.socket.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            assert part, "the server hung up"
            data += part
        return data


def opened(number: int, block: bytes = CALL, flags: int = http2_frames.END_HEADERS) -> bytes:
    return http2_frames.frame(http2_frames.HEADERS, flags, number, block)


def message_of(number: int, body: bytes = b"", length: int | None = None) -> bytes:
    prefix = struct.pack(">BI", 0, len(body) if length is None else length)
    return http2_frames.frame(http2_frames.DATA, http2_frames.END_STREAM, number, prefix + body)
