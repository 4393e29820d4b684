"""HTTP/1.1 to one server, blocking and on asyncio, over the parser that the gateway uses.

Both send a request on a connection of its own while it lasts, keep connections alive, and raise NotSent, Lost, or
TimeoutError at the request's deadline.
"""

import asyncio
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import lru_cache
from select import POLLIN, poll
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from pilotlight.client.session import Lost, NotSent, Reply, Request
from pilotlight.v2_tensors import Memory
from pilotlight.wire import http1_strict_parser as http1
from pilotlight.wire import unix_socket
from pilotlight.wire.http1_strict_parser import ChunkedBody, Malformed, ResponseHead

IDLE_S: Final = 15.0  # shorter than a server keeps an idle connection: the gateway does for 75 s
READ_BYTES: Final = 256 << 10
JOINED_BYTES: Final = 64 << 10  # shorter bodies are sent with their head, in one packet
REFUSED: Final = (BrokenPipeError, ConnectionResetError)  # by a server that may have answered before it closed
ConnectionT = TypeVar("ConnectionT")


@lru_cache(256)
def _parse(head: bytes) -> tuple[ResponseHead, dict[str, str]]:
    """Parse a head; those of one model repeat."""
    return http1.parse_response(head), {line.name: line.value for line in http1.response_lines(head)[1]}


class ResponseReader:
    """One response, fed with bytes as they come."""

    def __init__(self) -> None:
        self._buffer = b""
        self._head: ResponseHead | None = None
        self.headers: dict[str, str] = {}
        self.status, self.done, self.keep_alive = 0, False, False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body among `data`, which is empty at the end of the connection. Raise Lost."""
        try:
            if not data:
                return self._end()
            if self._head is None and not (data := self._feed_head(self._buffer + data)) and not self.done:
                return b""
            used = self._body.feed(data)
        except Malformed as error:
            raise Lost(f"the response is not HTTP: {error}") from None
        self.done = self.done or self._body.done
        self.keep_alive = self.keep_alive and used == len(data)
        return self._body.take_payload() if isinstance(self._body, ChunkedBody) else data[:used]

    def _feed_head(self, data: bytes) -> bytes:
        """Return what follows the head; nothing while it is incomplete. Interim responses are skipped."""
        status = 0
        while status < 200:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > http1.MAX_HEAD:
                    raise Malformed("its head is too long")
                self._buffer = data
                return b""
            head, headers = _parse(data[:end])
            data, status = data[end + 4 :], head.status
        self._head, self.headers, self.status, self.keep_alive = head, headers, head.status, head.keep_alive
        length = 0 if head.status in (204, 304) else head.length
        self._body = ChunkedBody(collect=True) if length == http1.CHUNKED else http1.new_body(length)
        self.done = length == 0
        return data

    def _end(self) -> bytes:
        if self._head is None or self._head.length != http1.UNTIL_CLOSE:
            raise Lost("the server closed the connection without a whole response")
        self.done, self.keep_alive = True, False
        return b""


def render(host: str, request: Request) -> list[Memory]:
    """Return the bytes of a request, joined if there are few."""
    size = sum(map(len, request.body))
    lines = [f"{request.method} {request.path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    lines += [f"Content-Length: {size}"] * (request.method != "GET")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return [b"".join((head, *request.body))] if size <= JOINED_BYTES else [head, *request.body]


class _Transport(Generic[ConnectionT]):
    """What both have in common: the address and the idle connections."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        self.unix = unix_socket.split_url(url) if unix_socket.is_unix(url) else None
        self.host = "localhost" if self.unix else parts.netloc
        self.address = ("", 0) if self.unix else (parts.hostname or "", parts.port or (443 if context else 80))
        self.context = context
        self._idle: deque[tuple[ConnectionT, float]] = deque()
        self._process = os.getpid()

    def take(self) -> ConnectionT | None:
        """Return an idle connection that the server has not closed, and that no process shares after a fork."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.drop_idle()
        while self._idle:
            with suppress(IndexError):  # another thread took it
                connection, since = self._idle.pop()
                if time.monotonic() - since < IDLE_S and self.is_open(connection):
                    return connection
                self.drop(connection)
        return None

    def release(self, connection: ConnectionT, response: ResponseReader) -> None:
        """Keep the connection of a complete response for the next request, if the server does."""
        if response.done and response.keep_alive:
            self._idle.append((connection, time.monotonic()))
        else:
            self.drop(connection)

    def drop_idle(self) -> None:
        while self._idle:
            self.drop(self._idle.pop()[0])

    def is_open(self, connection: ConnectionT) -> bool:
        raise NotImplementedError

    def drop(self, connection: ConnectionT) -> None:
        raise NotImplementedError


class BlockingTransport(_Transport[socket.socket]):
    """Any number of threads may send."""

    def send(self, request: Request) -> Reply:
        connection, response = self.take() or self._connect(request.deadline), ResponseReader()
        chunks = self._exchange(connection, request, response)
        first = next(chunks, b"")
        if request.stream and response.status == 200:
            return Reply(200, response.headers, first, chunks)
        return Reply(response.status, response.headers, b"".join((first, *chunks)))

    def _exchange(self, connection: socket.socket, request: Request, response: ResponseReader) -> Iterator[bytes]:
        """Yield the body as it comes, once the head is there."""
        try:
            connection.settimeout(_left(request.deadline))
            with suppress(*REFUSED):
                for piece in render(self.host, request):
                    connection.sendall(piece)
            while not response.done:
                connection.settimeout(_left(request.deadline))
                body = response.feed(connection.recv(READ_BYTES))
                if response.status:
                    yield body
        except OSError as error:
            raise _lost(error) from None
        finally:
            self.release(connection, response)

    def _connect(self, deadline: float) -> socket.socket:
        try:
            if self.unix:
                return unix_socket.connect(*self.unix)
            connection = socket.create_connection(self.address, timeout=_left(deadline))
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.context:
                    return self.context.wrap_socket(connection, server_hostname=self.address[0])
                return connection
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise _not_sent(error, deadline) from None

    def is_open(self, connection: socket.socket) -> bool:
        readable = poll()
        readable.register(connection, POLLIN)
        return not readable.poll(0)

    def drop(self, connection: socket.socket) -> None:
        connection.close()

    def __del__(self) -> None:
        self.drop_idle()  # in a notebook nobody closes a client


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncioTransport(_Transport[Streams]):
    """Requests of one event loop."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def send(self, request: Request) -> Reply:
        self._loop = self._loop or asyncio.get_running_loop()
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("an AsyncClient belongs to the event loop of its first call: create one per loop")
        connection = self.take() or await self._connect(request.deadline)
        pieces, response = list[bytes](), ResponseReader()
        chunks = self._exchange(connection, request, response)
        async for piece in chunks:
            if request.stream and response.status == 200:
                return Reply(200, response.headers, piece, chunks)
            pieces.append(piece)
        return Reply(response.status, response.headers, b"".join(pieces))

    async def _exchange(self, connection: Streams, request: Request, response: ResponseReader) -> AsyncIterator[bytes]:
        """Yield the body as it comes, once the head is there."""
        reader, writer = connection
        try:
            pieces = render(self.host, request)
            for piece in pieces:  # writelines would join them
                writer.write(piece)
            if len(pieces) > 1:
                with suppress(*REFUSED):
                    async with asyncio.timeout(_left(request.deadline)):
                        await writer.drain()
            while not response.done:
                async with asyncio.timeout(_left(request.deadline)):
                    data = await reader.read(READ_BYTES)
                body = response.feed(data)
                if response.status:
                    yield body
        except OSError as error:
            raise _lost(error) from None
        finally:
            self.release(connection, response)

    async def _connect(self, deadline: float) -> Streams:
        try:
            async with asyncio.timeout(_left(deadline)):
                if self.unix:
                    return await asyncio.open_connection(sock=unix_socket.connect(*self.unix), limit=READ_BYTES)
                return await asyncio.open_connection(*self.address, ssl=self.context, limit=READ_BYTES)
        except OSError as error:
            raise _not_sent(error, deadline) from None

    def is_open(self, connection: Streams) -> bool:
        unread = connection[0]._buffer  # type: ignore[attr-defined]  # what came unasked is no response to the next
        return not (unread or connection[0].at_eof() or connection[1].is_closing())

    def drop(self, connection: Streams) -> None:
        connection[1].transport.abort()


def _left(deadline: float) -> float:
    """Return the seconds until a deadline. Raise TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _not_sent(error: OSError, deadline: float) -> Exception:
    """Return a failed connection as NotSent, unless the deadline ended the attempt."""
    if isinstance(error, TimeoutError) and time.monotonic() >= deadline:
        return error
    return NotSent(f"no connection: {os.strerror(error.errno or 0) if isinstance(error, ConnectionError) else error}")


def _lost(error: OSError) -> Exception:
    return error if isinstance(error, TimeoutError) else Lost(f"the connection failed: {error}")
