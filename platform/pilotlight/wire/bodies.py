"""Framing of HTTP/1.1 bodies for the proxy: find where a body ends while its bytes pass through.

Each kind (content-length, chunked, until close) has `feed(data)`, which returns how many bytes belong to the body,
and `done`.
"""

import re
from typing import Final, Protocol

from pilotlight.wire.heads import CHUNKED, UNTIL_CLOSE, Malformed

# 15 digits exceed any memory. Extensions pass, but no byte that another parser could take for a line end (smuggling).
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\x20-\x7e\t]*)?")
_TRAILER: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\x20-\x7e\t\x80-\xff]*")
_MAX_LINE: Final = 4096
_MAX_TRAILERS: Final = 1 << 14


class BodyReader(Protocol):
    @property
    def done(self) -> bool: ...

    def feed(self, data: bytes) -> int:
        """Return how many of the bytes belong to the body. Raise Malformed."""


def new_body(length: int) -> BodyReader:
    """Return the reader of a body whose length is a number of bytes, CHUNKED or UNTIL_CLOSE."""
    if length == CHUNKED:
        return ChunkedBody()
    return UntilCloseBody() if length == UNTIL_CLOSE else ContentLengthBody(length)


class ContentLengthBody:
    __slots__ = ("left",)

    def __init__(self, length: int) -> None:
        self.left = length

    @property
    def done(self) -> bool:
        return self.left == 0

    def feed(self, data: bytes) -> int:
        used = min(self.left, len(data))
        self.left -= used
        return used


class UntilCloseBody:
    done = False

    def feed(self, data: bytes) -> int:
        return len(data)


class ChunkedBody:
    """Chunked body with trailers. With `collect`, the payload of the chunks is stored for `taken`."""

    __slots__ = ("_left", "_line", "_pieces", "_state", "_trailers", "done")

    def __init__(self, collect: bool = False) -> None:
        self.done = False
        self._state = "size"  # size -> data -> end (CR LF) -> size ..., after the last chunk trailers
        self._left = 0
        self._line = b""  # incomplete line of the previous call
        self._trailers = 0
        self._pieces: list[bytes] | None = [] if collect else None

    def feed(self, data: bytes) -> int:
        at, size = 0, len(data)
        while at < size and not self.done:
            at = self._data(data, at) if self._state == "data" else self._read_line(data, at)
        return at

    @property
    def collecting(self) -> bool:
        return self._pieces is not None

    def take_payload(self) -> bytes:
        """Return the payload of the chunks since the last call."""
        assert self._pieces is not None
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def _data(self, data: bytes, at: int) -> int:
        used = min(self._left, len(data) - at)
        if self._pieces is not None:
            self._pieces.append(data[at : at + used])
        self._left -= used
        if not self._left:
            self._state = "end"
        return at + used

    def _read_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        line = self._line + data[at : end + 1 if end >= 0 else None]
        if len(line) > _MAX_LINE:
            raise Malformed("a line between chunks is too long")
        if end < 0:
            self._line = line
            return len(data)
        self._line = b""
        if not line.endswith(b"\r\n"):
            raise Malformed("a line between chunks does not end with CR LF")
        self._on_line(line[:-2])
        return end + 1

    def _on_line(self, line: bytes) -> None:
        if self._state == "size":
            size = _SIZE.fullmatch(line)
            if size is None:
                raise Malformed("the size of a chunk is no hexadecimal number")
            self._left = int(size[1], 16)
            self._state = "data" if self._left else "trailers"
        elif self._state == "end":
            if line:
                raise Malformed("a chunk is longer than its size says")
            self._state = "size"
        elif not line:
            self.done = True
        else:
            self._trailers += len(line)
            if self._trailers > _MAX_TRAILERS or not _TRAILER.fullmatch(line):
                raise Malformed("a trailer is malformed or too long")
