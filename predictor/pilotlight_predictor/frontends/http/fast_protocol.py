"""Asyncio protocol for plain HTTP/1.1 requests with Content-Length on hot routes; responses may be streamed.

Every connection starts here. The first other request (chunked, an upgrade, another route, an unusual byte) switches
the connection, with the bytes read so far, to aiohttp's handler, once no response is outstanding.
"""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any, Final, Protocol, cast

from pilotlight.wire.http1 import END, MAX_HEAD, Buffer, render_chunked_head
from pilotlight_predictor.frontends.http.body_reader import LARGE, BodyReader, create_body_reader
from pilotlight_predictor.frontends.http.known_head import HeadOwner, KnownHead, read_head
from pilotlight_predictor.frontends.http.messages import (
    TOO_SLOW,
    UNCOUNTED,
    HttpRequest,
    HttpResponse,
    close_stream,
    with_request_id,
    write_response,
)
from pilotlight_predictor.frontends.peer import peer_of
from pilotlight_predictor.frontends.tasks_and_timeouts import IDLE_S, SLOW_S, abort_when_unread, spawn
from pilotlight_predictor.observability.logs import log

READ_AHEAD: Final = 1 << 18  # bytes of pipelined requests that are buffered while one is served
SOLE_CLIENT_AFTER: Final = 16  # consecutive requests on one connection: there are no others to batch with


class ConnectionOwner(HeadOwner, Protocol):
    """HTTP server as its connections need it; implemented by HttpServer."""

    connections: "set[FastHttpProtocol]"
    last_active: "FastHttpProtocol | None"  # connection of the last request
    closing: bool

    @property
    def reserve(self) -> Callable[[int], int | None]:
        """Reserve memory for this number of bytes and return the bytes reserved; None: they do not fit."""

    @property
    def release(self) -> Callable[[int], None]: ...
    def refuse(self, request: HttpRequest, match: Any, length: int, *, counted: bool) -> tuple[HttpResponse, int]:
        """Return the error, and its length, for a body, or (`counted`) a response, that does not fit the budget."""

    def switch_to_aiohttp(self, connection: "FastHttpProtocol") -> None: ...


class FastHttpProtocol(asyncio.Protocol):
    __slots__ = (
        "_body", "_buffer", "_consecutive", "_half", "_known", "_read_paused", "_request", "_reserved", "_resumed",
        "_stream", "_unsent", "_write_paused", "busy_since", "owner", "peer", "transport",
    )  # fmt: skip

    def __init__(self, owner: ConnectionOwner) -> None:
        self.owner = owner
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.busy_since = monotonic()  # when the request began, the response stalled, or the connection became idle
        self._buffer: bytes = b""
        self._known: KnownHead | None = None  # the last one
        self._body: BodyReader | None = None
        self._reserved = 0
        self._request: HttpRequest | None = None
        self._consecutive = 0  # requests since another connection had one
        self._read_paused = False
        self._half = False  # a part of the next head has arrived
        self._write_paused = False  # the client does not read: serve no further request until it does
        self._unsent = 0
        self._stream: asyncio.Task[None] | None = None  # writes a streamed response
        self._resumed = asyncio.Event()  # the client reads again

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.peer = peer_of(transport)
        self.owner.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unregister()
        self.transport = None
        self._body = None
        request, self._request = self._request, None
        if request is not None:
            request.abandon()
        if self._stream is not None:
            self._stream.cancel()
        if request is None or self._stream is not None:  # else its handler still has the body: `_finish` releases it
            self._end_request()

    def _unregister(self) -> None:
        self.owner.connections.discard(self)
        if self.owner.last_active is self:
            self.owner.last_active = None

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            body, used = self._body, self._body.feed(data)
            if not body.missing:
                self._buffer = data[used:]
                body.end()
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._request is None:
            self._next()
        if len(self._buffer) > READ_AHEAD and not self._read_paused and (self._request or self._write_paused):
            self._read_paused = True
            self.pause()

    def _next(self) -> None:
        """Serve the request at the start of the buffer if its head is complete and plain."""
        buffer = self._buffer
        if not buffer or self._request is not None or self._write_paused or self.transport is None:
            return
        known = self._known
        if known is None or not known.text or not buffer.startswith(known.text):
            known = self._read_head(buffer)
            if known is None:
                return
        elif known.recheck and not self.owner.admits(known.head, self.peer, known.match):
            self.owner.switch_to_aiohttp(self)
            return
        self._half = False
        if known.length == known.body_start:
            self._buffer = buffer[known.body_start :]
            self._serve(b"")
        elif (held := self.owner.reserve(known.length - known.body_start)) is None:
            if len(buffer) >= known.length or known.match is self.owner:  # the latter: booting
                self.owner.switch_to_aiohttp(self)
            else:
                self._read_body(buffer, known, self._refuse_body)
        elif len(buffer) == known.length:
            self._reserved, self._buffer = held, b""
            self._serve(buffer[known.body_start :])
        elif len(buffer) > known.length:
            self._reserved, self._buffer = held, buffer[known.length :]
            self._serve(buffer[known.body_start : known.length])
        else:
            self.owner.release(held)  # its length is only announced: a body counts as it arrives
            self._read_body(buffer, known, self._account_body)

    def _read_head(self, buffer: bytes) -> KnownHead | None:
        """Parse a head that differs from the last one; None if it is incomplete, or aiohttp must handle it."""
        end = buffer.find(END)
        if end < 0:
            if len(buffer) > MAX_HEAD or not buffer[:1].isalpha():
                self.owner.switch_to_aiohttp(self)
            elif not self._half:
                self._half, self.busy_since = True, monotonic()
            return None
        known = read_head(self.owner, self.peer, buffer[:end]) if 0 < end <= MAX_HEAD else None
        if known is None:
            self.owner.switch_to_aiohttp(self)
        else:
            self._known = known
        return known

    def _read_body(self, buffer: bytes, known: KnownHead, account: Callable[[int], bool]) -> None:
        assert self.transport is not None
        start = memoryview(buffer)[known.body_start :]
        self._buffer = b""
        self._body = body = create_body_reader(
            known.head, start, self, self._whole, account, in_place=known.match is not self.owner
        )
        if body.missing >= LARGE:
            body.read_from(self.transport)

    def _account_body(self, arrived: int) -> bool:
        if (held := self.owner.reserve(arrived)) is None:
            return self._refuse_body(arrived)
        self._reserved += held
        return True

    def _refuse_body(self, _: int) -> bool:
        """Respond to a request before its body is complete; the connection is closed when the rest was discarded."""
        known, transport = cast(KnownHead, self._known), cast(asyncio.Transport, self.transport)
        request = HttpRequest(*known.head[:4], b"", self.peer, self._finish, perf_counter())
        response, length = self.owner.refuse(request, known.match, known.head.length, counted=False)
        self._end_request()
        write_response(transport, response, length, with_request_id(request, response), True)
        return False

    def _whole(self, body: Buffer) -> None:
        reader, self._body = self._body, None
        if reader is not None and reader.discarding:
            self.close()
        else:
            self._serve(body)

    def _serve(self, body: Buffer) -> None:
        known, owner = self._known, self.owner
        assert known is not None
        method, path, query, headers, _, _ = known.head
        self._request = request = HttpRequest(
            method, path, query, headers, body, self.peer, self._finish, perf_counter()
        )
        if owner.last_active is self:
            self._consecutive += 1
            request.sole_client = self._consecutive >= SOLE_CLIENT_AFTER
        else:
            owner.last_active, self._consecutive = self, 0
        known.serve(request, known.match)

    def _finish(self, response: HttpResponse) -> None:
        """Write the response, then continue with pipelined requests."""
        request, known, transport = self._request, self._known, self.transport
        if transport is None or request is None or known is None:
            if not isinstance(response.body, list):
                spawn(close_stream(response.body))
            self._end_request()
            return
        close = self.owner.closing or not known.head.keep_alive
        body, length = response.body, 0
        if isinstance(body, list):
            length = len(body[0]) if len(body) == 1 else sum(map(len, body))
            if length > UNCOUNTED and not self._reserve_response(length):
                response, length = self.owner.refuse(request, known.match, length, counted=True)
        headers = with_request_id(request, response) if known.echoes or response.headers else None
        if not isinstance(body, list):
            request.on_abandon = None  # the end of the stream says it
            transport.write(render_chunked_head(response.status, response.content_type, headers, close))
            self._stream = asyncio.get_running_loop().create_task(self._write_stream(transport, body, close))
            return
        write_response(transport, response, length, headers, close)
        self._after_response(transport, close, length)

    def _reserve_response(self, length: int) -> bool:
        """Reserve memory for a response in place of its request; return False if the budget does not suffice."""
        more = self.owner.reserve(length - self._reserved) if length > self._reserved else 0
        self._reserved += more or 0
        return more is not None

    def _end_request(self, unread: int = 0) -> None:
        """Release the bytes of a request, but the `unread` ones of its response while the client does not read it."""
        self._request = None
        if self._reserved:
            # All of it: the transport holds the buffers of a response until their last byte is sent.
            unread = min(self._reserved, unread) if self._write_paused and self.transport is not None else 0
            self.owner.release(self._reserved - unread)
            self._reserved = unread

    async def _write_stream(self, transport: asyncio.Transport, parts: AsyncIterator[bytes], close: bool) -> None:
        """Write a streamed body in chunks, as fast as the client reads; cancelled when it disconnects."""
        try:
            async for piece in parts:
                if piece:
                    transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                if self._write_paused:
                    await self._wait_for_reader(transport)
            transport.write(b"0\r\n\r\n")
        except Exception as error:  # the status is sent: an incomplete body shows the client that it failed
            log("request.failed", "a streamed response failed", level="ERROR", error=error)
            close = True
        finally:
            self._stream = None
            await close_stream(parts)
        self._after_response(transport, close)

    async def _wait_for_reader(self, transport: asyncio.Transport) -> None:
        unsent = transport.get_write_buffer_size()
        held = self.owner.reserve(unsent)
        if held is None:
            log("request.failed", "a streamed response was cut off: the client reads too slowly", level="WARNING")
            transport.abort()  # which cancels this task
        try:
            with abort_when_unread(transport, unsent):
                await self._resumed.wait()
        finally:
            self.owner.release(held or 0)

    def _after_response(self, transport: asyncio.Transport, close: bool, length: int = 0) -> None:
        self._end_request(length)
        if close:
            transport.close()
            return
        self.busy_since = monotonic()
        if self._buffer or self._read_paused:
            self._continue()

    def _continue(self) -> None:
        if self._write_paused or self.transport is None:
            return
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._next)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._resumed.clear()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._resumed.set()
        if self._request is None and self._body is None:
            self._end_request()
            self._continue()

    def take_over(self, handler: asyncio.Protocol) -> None:
        """Pass the connection and the unparsed bytes to another protocol."""
        transport, buffer = self.transport, self._buffer
        if transport is None:
            return
        self._unregister()
        self._buffer, self.transport = b"", None
        transport.set_protocol(handler)
        handler.connection_made(transport)
        transport.resume_reading()
        if buffer:
            handler.data_received(buffer)

    def pause(self) -> None:
        """Stop reading until `take_over`."""
        if self.transport is not None:
            self.transport.pause_reading()

    def reset_route(self) -> None:
        """Match the next request anew, after a change of the routes."""
        if self._known is not None:
            self._known.text = b""

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def close_if_read(self) -> bool:
        """Close the connection unless its socket holds bytes to read. Return whether it closes.

        Closing a socket that holds a request resets the connection, and the peer cannot know whether that request was
        executed. A request that arrives after the FIN is not acknowledged: the peer may send it elsewhere.
        """
        if self.transport is None or self.transport.is_closing():
            return True
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as duplicate:
            poll = select.poll()
            poll.register(duplicate, select.POLLIN)
            if poll.poll(0):
                return False
            if duplicate.family == socket.AF_UNIX:
                return self._close_unix(duplicate)
            if self.transport.get_extra_info("sslcontext") is None:  # TLS says first that it closes
                with suppress(OSError):  # the peer has gone
                    duplicate.shutdown(socket.SHUT_RDWR)
        self.transport.close()
        return True

    def _close_unix(self, duplicate: socket.socket) -> bool:
        """Close the connection unless a request arrives right now. Return whether it closes.

        With SHUT_RD the peer's next send fails with EPIPE, which proves to it that this request did not arrive.
        """
        assert self.transport is not None
        with suppress(OSError):  # the peer has gone
            duplicate.shutdown(socket.SHUT_RD)
            if late := duplicate.recv(READ_AHEAD):
                self.transport.pause_reading()  # the end that SHUT_RD makes visible would close the connection
                self.data_received(late)
                return False
        self.transport.close()
        return True

    def close_if_overdue(self, now: float, slow_s: float = SLOW_S) -> None:
        """Close a connection that is idle for too long, sends too slowly or does not read. `slow_s`: for bodies."""
        if self.transport is None or self._request is not None:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self.busy_since = unsent, now
        body = self._body
        if unsent or body is None:
            overdue = now - self.busy_since > (IDLE_S if self.idle else SLOW_S)
        else:
            overdue = body.arrival.is_overdue(body.filled, now, slow_s)
        if overdue:
            if not self.idle and not unsent and not (body is not None and body.discarding):
                self.transport.write(TOO_SLOW)
            self.transport.abort() if unsent else self.transport.close()  # close() would wait for the client to read

    @property
    def idle(self) -> bool:
        """No request is buffered or being served, and every response has been written."""
        if self._request is not None or self._body is not None or self._buffer:
            return False
        return self.transport is None or self.transport.get_write_buffer_size() == 0

    @property
    def head_since(self) -> float:
        """When the first byte of the incomplete head came; 0: the head is complete, or none has begun."""
        return self.busy_since if self._half else 0.0

    @property
    def is_new(self) -> bool:
        """Nothing has been received yet."""
        return self._known is None and self.idle
