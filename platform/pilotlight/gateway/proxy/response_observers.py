"""Observers of proxied requests: what reads bodies and results as they pass, such as token usage and request logs.

A request has an observer only if its route is `observed` (`LiveRoute`); the others cost nothing. The process adds
functions that build them to `DataPlane.observers`.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from pilotlight.wire.http1_strict_parser import CHUNKED, ChunkedBody, HeaderLine, Malformed


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


class Observation:
    """The observer of one request, between framed bodies and payload."""

    def __init__(self, observer: ResponseObserver, request_length: int) -> None:
        self._observer = observer
        self._request = ChunkedBody(collect=True) if request_length == CHUNKED else None
        self._length = 0  # of the response
        self._chunked = False  # the client gets chunks

    def add_request(self, piece: bytes) -> None:
        if self._request is not None:
            with suppress(Malformed):  # the connection answers it
                self._request.feed(piece)
            piece = self._request.take_payload()
        if piece:
            self._observer.on_request_body(piece)

    def start(self, status: int, lines: Iterable[HeaderLine], length: int, minor: int) -> None:
        """Take the head of the response; `minor` is the client's version of HTTP/1.x."""
        self._length, self._chunked = length, length == CHUNKED and minor > 0
        self._observer.on_head(status, {line.name: line.value for line in lines})

    def add(self, piece: bytes) -> bytes:
        """Return what the client gets for a piece of the response's payload."""
        passed = self._observer.on_body(piece)
        return piece if self._length >= 0 else self._framed(passed)

    def finish(self) -> bytes:
        """Return the end of the response's body."""
        rest = self._observer.on_body_end()
        return b"" if self._length >= 0 else self._framed(rest) + (b"0\r\n\r\n" if self._chunked else b"")

    def end(self, status: int, now: float) -> None:
        self._observer.on_end(status, now)

    def _framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked and piece else piece


def chain(observers: Iterable[ResponseObserver | None]) -> ResponseObserver | None:
    """Return one observer for all that are given; None if there is none."""
    present = tuple(observer for observer in observers if observer is not None)
    return _Chain(present) if len(present) > 1 else next(iter(present), None)
