"""A house for connections of HTTP/2: it keeps every stream, and its clock stands still unless it is moved."""

from typing import Any

import pytest

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2 import frames
from pilotlight.wire.http2.connection import Http2Connection
from pilotlight.wire.http2.frames import ConnectionFault, frame
from pilotlight.wire.http2.hpack import HeaderField, literal
from pilotlight.wire.http2.streams import STREAM_WINDOW, Http2Stream

BLOCK = bytes.fromhex("838684") + literal("a", "b")  # POST, http, /
START = frames.PREFACE + frames.settings({})


class Noted(Http2Stream):
    __slots__ = ("body", "is_drained", "is_gone")

    def __init__(self, number: int, window: int, *, ended: bool) -> None:
        super().__init__(number, window, STREAM_WINDOW, ended=ended)
        self.body, self.is_gone, self.is_drained = b"", False, False

    def on_data(self, data: Buffer, start: int, end: int) -> None:
        self.body += bytes(data[start:end])

    def on_reset(self) -> None:
        self.is_gone = True

    def on_drained(self) -> None:
        self.is_drained = True


class House:
    """A guest that keeps every stream; time stands still unless it is moved."""

    def __init__(self) -> None:
        self.reads = 0
        self.opened: dict[int, Noted] = {}
        self.heads: list[Any] = []
        self.table = 4096
        self.now, self.knows = 0.0, False
        self.connection = Http2Connection(self, lambda: self.now)

    def parse_head(self, fields: list[HeaderField], whole: bool) -> Any:
        self.reads += 1
        return (tuple(fields), whole)

    def on_request(self, number: int, head: Any, ended: bool) -> None:
        self.heads.append(head)
        self.opened[number] = Noted(number, self.connection.out.initial_window, ended=ended)
        self.connection.streams[number] = self.opened[number]

    def stop_accepting(self) -> None:
        self.knows = True

    def on_ping(self) -> None: ...

    def on_table_size(self, size: int) -> None:
        self.table = size

    def hear(self, *parts: bytes) -> list[tuple[int, int, int, bytes]]:
        """The frames that this is answered with: kind, flags, stream, payload."""
        self.connection.receive(b"".join(parts))
        return self.said()

    def said(self) -> list[tuple[int, int, int, bytes]]:
        return list(cut(b"".join(self.connection.out.take_frames())))


def cut(data: bytes) -> Any:
    at = 0
    while at < len(data):
        word, flags, number = frames.HEAD.unpack_from(data, at)
        end = at + frames.HEAD_LENGTH + (word >> 8)
        yield word & 0xFF, flags, number, data[at + frames.HEAD_LENGTH : end]
        at = end


def head(number: int, flags: int = frames.END_HEADERS, block: bytes = BLOCK) -> bytes:
    return frame(frames.HEADERS, flags, number, block)


def settled() -> House:
    made = House()
    made.hear(START)
    return made


def fault(house: House, *parts: bytes) -> int:
    with pytest.raises(ConnectionFault) as caught:
        house.hear(*parts)
    return caught.value.code
