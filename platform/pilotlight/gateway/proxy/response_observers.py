"""Observers of proxied requests: what reads bodies and results as they pass, such as token usage and request logs.

A request has an observer only if its route is `observed` (`LiveRoute`); the others cost nothing. The process adds
functions that build them to `DataPlane.observers`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final, Protocol

from pilotlight.gateway.proxy.prepare_request import with_headers
from pilotlight.wire.http1_strict_parser import (
    CHUNKED,
    ChunkedBody,
    HeaderLine,
    Malformed,
    ResponseHead,
    response_lines,
)

MAX_LINE: Final = 1 << 20  # bytes of a line of a stream; a longer one passes as it is
FIELD: Final = 32  # bytes of a field `model` beside its name: 8, the rest is white space


class ResponseObserver(Protocol):
    """Called in the order of the methods; bodies are without chunk framing.

    A request that the gateway answers itself has no head and no body, only its end. `status` of the end is 499 if the
    client disconnected and 0 if the response was truncated. Only a response without Content-Length can be changed.
    """

    def on_request_body(self, piece: bytes) -> None: ...
    def on_head(self, status: int, headers: Mapping[str, str]) -> None: ...  # lower-case names
    def on_body(self, piece: bytes) -> bytes: ...  # what the client gets in its place
    def on_body_end(self) -> bytes: ...  # what was held back
    def on_end(self, status: int, now: float) -> None: ...


class _Chain:
    """Several observers; each reads what the one before it passes on."""

    def __init__(self, observers: tuple[ResponseObserver, ...]) -> None:
        self._observers = observers

    def on_request_body(self, piece: bytes) -> None:
        for observer in self._observers:
            observer.on_request_body(piece)

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        for observer in self._observers:
            observer.on_head(status, headers)

    def on_body(self, piece: bytes) -> bytes:
        for observer in self._observers:
            piece = observer.on_body(piece) if piece else piece
        return piece

    def on_body_end(self) -> bytes:
        rest = b""
        for observer in self._observers:
            rest = (observer.on_body(rest) if rest else b"") + observer.on_body_end()
        return rest

    def on_end(self, status: int, now: float) -> None:
        for observer in self._observers:
            observer.on_end(status, now)


class ResponseModel:
    """Model of a response, under the name that the client used: the engine knows an alias or adapter by another one.

    `sized`: the body's length is announced. Then the JSON body is longer by `growth` whatever its content: spaces fill
    what a shorter name leaves. Each event of a stream has a name, a JSON body one.
    """

    def __init__(self, engine_name: str, name: str, stream: bool, sized: bool) -> None:
        self._pattern, shortest, longest = _model_field(engine_name)
        self._name = json.dumps(name).encode()
        self._stream, self._sized, self._replaced = stream, sized, False
        self.growth = max(0, len(self._name) - shortest) if sized else 0
        self._kept = FIELD + longest  # bytes at the end of a piece, where a field may be cut
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of the body; return what the client gets."""
        if self._replaced:
            return piece
        data = self._held + piece
        if self._stream:
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            end = end if len(data) - end <= MAX_LINE else len(data)
        else:
            data = self._replace_first(data)
            end = len(data) if self._replaced else max(0, len(data) - self._kept)
        self._held = data[end:]
        return self._pattern.sub(self._renamed, data[:end]) if self._stream else data[:end]

    def finish(self) -> bytes:
        """Take the end of the body; return what the client gets."""
        rest, self._held = self._held, b""
        if self._stream:
            return self._pattern.sub(self._renamed, rest)
        return rest if self._replaced else rest + b" " * self.growth

    def _renamed(self, match: re.Match[bytes]) -> bytes:
        return match[1] + self._name

    def _replace_first(self, data: bytes) -> bytes:
        if (match := self._pattern.search(data)) is None:
            return data
        self._replaced = True
        spaces = self.growth + len(match[2]) - len(self._name) if self._sized else 0
        return b"".join((data[: match.start()], self._renamed(match), b" " * spaces, data[match.end() :]))


@lru_cache
def _model_field(name: str) -> tuple[re.Pattern[bytes], int, int]:
    """Return the pattern of a field `model` with this name, and the lengths of its shortest and longest value."""
    # A quote within a string of JSON is escaped, so this matches fields alone.
    values = {json.dumps(name).encode(), json.dumps(name, ensure_ascii=False).encode()}
    pattern = re.compile(rb'("model"\s*:\s*)(%b)' % b"|".join(map(re.escape, values)))
    return pattern, min(map(len, values)), max(map(len, values))


class Observation:
    """The observer of one request, between framed bodies and payload."""

    def __init__(self, observer: ResponseObserver, request_length: int) -> None:
        self._observer = observer
        self._request = ChunkedBody(collect=True) if request_length == CHUNKED else None
        self._length = 0  # of the response
        self._model: ResponseModel | None = None
        self._chunked = False  # the client gets chunks

    def add_request(self, piece: bytes) -> None:
        if self._request is not None:
            with suppress(Malformed):  # the connection answers it
                self._request.feed(piece)
            piece = self._request.take_payload()
        if piece:
            self._observer.on_request_body(piece)

    def start(
        self, status: int, lines: Iterable[HeaderLine], length: int, minor: int,
        renamed: tuple[str, str] | None = None,
    ) -> int:  # fmt: skip
        """Take the head of the response; return by how many bytes its body becomes longer.

        `minor` is the client's version of HTTP/1.x, `renamed` the model: the engine's name of it, and the client's.
        """
        self._length, self._chunked = length, length == CHUNKED and minor > 0
        headers = {line.name: line.value for line in lines}
        kind, sized = headers.get("content-type", "").lower(), length >= 0
        stream = kind.startswith("text/event-stream")
        named = not sized if stream else "json" in kind  # not audio, nor the text of a transcription
        if renamed is not None and status == 200 and "content-encoding" not in headers and named:
            self._model = ResponseModel(*renamed, stream, sized)
        self._observer.on_head(status, headers)
        return self._model.growth if self._model is not None else 0

    def complete(
        self, head: ResponseHead, data: bytes, end: int, minor: int, renamed: tuple[str, str] | None
    ) -> tuple[bytes, int]:
        """Take a response that has come whole; return what the client gets, and the end of its head."""
        growth = self.start(head.status, response_lines(data[:end])[1], head.length, minor, renamed)
        body = self.add(data[end + 4 :])
        if renamed is None:
            return data, end
        start = with_headers(data[: end + 2], {"Content-Length": str(head.length + growth)})
        return b"".join((start, b"\r\n", body)), len(start) - 2

    def add(self, piece: bytes) -> bytes:
        """Return what the client gets for a piece of the response's payload."""
        piece = self._model.feed(piece) if self._model is not None else piece
        passed = self._observer.on_body(piece)
        return piece if self._length >= 0 else self._framed(passed)

    def finish(self) -> bytes:
        """Return the end of the response's body."""
        rest = self._model.finish() if self._model is not None else b""
        passed = (self._observer.on_body(rest) if rest else b"") + self._observer.on_body_end()
        return rest if self._length >= 0 else self._framed(passed) + (b"0\r\n\r\n" if self._chunked else b"")

    def end(self, status: int, now: float) -> None:
        self._observer.on_end(status, now)

    def _framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked and piece else piece


UNOBSERVED: Final = _Chain(())  # of a request whose response alone is of interest, to ResponseModel


def chain(observers: Iterable[ResponseObserver | None]) -> ResponseObserver | None:
    """Return one observer for all that are given; None if there is none."""
    present = tuple(observer for observer in observers if observer is not None)
    return _Chain(present) if len(present) > 1 else next(iter(present), None)
