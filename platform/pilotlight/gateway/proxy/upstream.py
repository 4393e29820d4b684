"""Connections to a replica: each sends a request, streams its response to the sink, and returns to the idle pool.

A response that arrives in one read is forwarded unchanged. Anything longer is forwarded piece by piece, with flow
control in both directions.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Final, Protocol, cast

from pilotlight.gateway.routing_table import Replica
from pilotlight.wire.http1 import END
from pilotlight.wire.http1_strict_parser import (
    CHUNKED,
    MAX_HEAD,
    UNTIL_CLOSE,
    BodyReader,
    ChunkedBody,
    Malformed,
    ResponseHead,
    UntilCloseBody,
    new_body,
    parse_response,
)
from pilotlight.wire.unix_socket import HeldSocket, is_unix

CONNECT_S: Final = 5.0
MAX_IDLE: Final = 256  # connections
IDLE_S: Final = 50.0  # shorter than the predictor's 75 s: a request must not meet a connection that is being closed
SETTLE_S: Final = 0.05  # after a stream: llama.cpp's server closes its connection then, unannounced
TIMEOUT_REPORT_S: Final = 60.0  # without a timeout, until the next one is reported again
BODILESS: Final = frozenset({204, 304})
JOIN_BELOW: Final = 1 << 14  # bytes that are cheaper to copy than to write separately
_BYTES_ACKED: Final = 120  # offset of tcpi_bytes_acked in Linux' struct tcp_info
_SYN: Final = 1  # the SYN counts as one acknowledged byte
_TCP_INFO: Final = 11


class ConnectionRequester(Protocol):
    """Receiver of a new connection, or of the reason why there is none."""

    def on_connected(self, replica: "LiveReplica", upstream: "Upstream") -> None: ...
    def on_connect_failed(self, replica: "LiveReplica", reason: str) -> None: ...


class LiveReplica:
    __slots__ = (
        "_connecting", "_last_timeout", "_unix", "config", "idle", "in_flight", "retired", "unhealthy_until",
    )  # fmt: skip

    def __init__(self, config: Replica) -> None:
        self.config = config
        self.in_flight = 0
        self.idle: list[Upstream] = []  # last in, first out
        self.retired = False  # not in the table any more: gets no new requests
        self.unhealthy_until = 0.0
        self._last_timeout = float("-inf")
        self._unix = HeldSocket(config.host, config.port) if is_unix(config.host) else None
        if self._unix is not None:
            with suppress(OSError):  # held now, in case that the home folder is removed; an error shows in `connect`
                self._unix.hold()
        self._connecting: set[asyncio.Task[None]] = set()  # the event loop holds tasks only weakly

    @property
    def id(self) -> str:
        return self.config.id

    def is_unhealthy(self, now: float) -> bool:
        return self.unhealthy_until > now

    def timed_out(self, now: float) -> bool:
        """Note that a request got no answer in time. Return whether it is the first for a while, thus to be reported:
        requests behind one that hangs follow it."""
        first = now - self._last_timeout > TIMEOUT_REPORT_S
        self._last_timeout = now
        return first

    def take_idle(self) -> "Upstream | None":
        """Return an idle connection that is not known to be closing, and not about to."""
        for index in range(len(self.idle) - 1, -1, -1):
            upstream = self.idle[index]
            if not (upstream.closing or upstream.settling):
                return self.idle.pop(index)
        return None

    def put_idle(self, upstream: "Upstream", now: float) -> None:
        if self.retired or len(self.idle) >= MAX_IDLE:
            upstream.close()
        else:
            upstream.idle_since = now
            self.idle.append(upstream)

    def connect(self, requester: ConnectionRequester) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(requester))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, requester: ConnectionRequester) -> None:
        loop, config = asyncio.get_running_loop(), self.config
        try:
            async with asyncio.timeout(CONNECT_S):
                if self._unix is not None:
                    _, upstream = await loop.create_unix_connection(lambda: Upstream(self), sock=self._unix.connect())
                else:
                    _, upstream = await loop.create_connection(lambda: Upstream(self), config.host, config.port)
        except (OSError, TimeoutError) as error:
            if self._unix is not None and isinstance(error, ConnectionRefusedError):
                self._unix.close()  # a tunnel that was opened again has another socket at this path
            requester.on_connect_failed(self, type(error).__name__)
        else:
            requester.on_connected(self, upstream)

    def retire(self) -> None:
        self.retired = True
        self.close_idle()
        if self._unix is not None:
            self._unix.close()

    def close_idle(self, before: float = float("inf")) -> None:
        """Close connections that were last used before that time."""
        overdue = [upstream for upstream in self.idle if upstream.idle_since < before]
        for upstream in overdue:
            self.idle.remove(upstream)
            upstream.close()


class FlowControlledProtocol(asyncio.Protocol):
    """Reading can be paused: flow control between the client's and the replica's connection."""

    __slots__ = ("_paused", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)  # set by connection_made
        self._paused = False

    def pause(self) -> None:
        """Stop reading until `resume`: the other connection cannot take more."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.transport.resume_reading()


class ResponseSink(Protocol):
    """The request that receives the response of an upstream connection."""

    method: str
    body_complete: bool

    @property
    def reads_payload(self) -> bool: ...  # bodies go to it without their chunk framing
    def now(self) -> float: ...
    def forward_response(self, head: ResponseHead, data: bytes, end: int) -> None: ...
    def forward_head(self, head: ResponseHead, raw: bytes, length: int) -> None: ...
    def forward_interim(self, raw: bytes) -> None: ...
    def write(self, data: bytes) -> None: ...
    def start_tunnel(self, upstream: "Upstream", head: bytes, rest: bytes) -> None: ...
    def finish(self, status: int, now: float) -> None: ...
    def on_connection_lost(self, never_delivered: bool) -> None: ...
    def pause_body(self) -> None: ...
    def resume_body(self) -> None: ...


class Upstream(FlowControlledProtocol):
    __slots__ = (
        "_body", "_buffer", "_eof", "_refused", "_reusable", "_sent", "_sent_before", "_socket", "_status", "_unix",
        "closing", "idle_since", "replica", "settling", "sink",
    )  # fmt: skip

    def __init__(self, replica: LiveReplica) -> None:
        super().__init__()
        self.replica = replica
        self.sink: ResponseSink | None = None
        self.closing = False
        self.idle_since = 0.0
        self._socket: socket.socket | None = None
        self._sent = self._sent_before = 0
        self._eof = False  # the replica closed its side, without a reset
        self._unix = False
        self._refused = False  # the first send of the request failed: a unix socket that the replica has shut down
        self._buffer = b""
        self._body: BodyReader | None = None
        self._status = 0
        self._reusable, self.settling = True, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        opened = transport.get_extra_info("socket")
        # The event loop closes its descriptor before connection_lost; a duplicate still gives the kernel's TCP_INFO.
        self._socket = socket.socket(fileno=socket.dup(opened.fileno())) if opened is not None else None
        self._unix = self._socket is not None and self._socket.family == socket.AF_UNIX

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        with suppress(ValueError):
            self.replica.idle.remove(self)
        sink, self.sink = self.sink, None
        # A write after FIN and RST fails with EPIPE; after RST alone it fails with ECONNRESET.
        eof = self._eof or isinstance(exc, BrokenPipeError)
        # With any byte of a response the request was received.
        no_response = self._body is None and not self._buffer
        undelivered = (
            sink is not None
            and no_response
            and self._socket is not None
            and (self._refused if self._unix else never_delivered(self._socket, self._sent_before, eof))
        )
        self._close_socket()
        if sink is None:
            return
        if exc is None and isinstance(self._body, UntilCloseBody):
            sink.finish(self._status, sink.now())
        else:
            sink.on_connection_lost(undelivered)

    def detach(self) -> asyncio.Transport:
        """Return the transport for a tunnel; its protocol is replaced by the caller."""
        self.sink = None
        self.closing = True
        self._close_socket()
        return self.transport

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def eof_received(self) -> bool:
        self.closing = self._eof = True
        return False

    def send(self, sink: ResponseSink, parts: list[bytes]) -> None:
        """Send a request's head with the part of its body that is buffered."""
        self.sink = sink
        self._sent_before = self._sent
        self._status, self._reusable = 0, True
        length = sum(map(len, parts))
        self._sent += length
        if self._unix:
            self._send_unix([b"".join(parts)] if length <= JOIN_BELOW else parts)
        elif length <= JOIN_BELOW:
            self.transport.write(b"".join(parts))
        else:
            self.transport.writelines(parts)

    def _send_unix(self, parts: list[bytes]) -> None:
        """Send at once what the socket takes, the rest by the transport.

        If the first send fails with EPIPE, no byte of the request has arrived. A send that succeeds puts its bytes into
        the replica's queue: from then on the request may have been read.
        """
        assert self._socket is not None
        sent = 0
        try:
            if not self.transport.get_write_buffer_size():
                sent = self._socket.send(parts[0])
        except BrokenPipeError:
            self._refused = True
            self.abort()
            return
        except OSError:  # EAGAIN, or an error that the transport will see too
            pass
        if sent < len(parts[0]) or len(parts) > 1:
            self.transport.writelines([parts[0][sent:], *parts[1:]])

    def send_body(self, piece: bytes) -> None:
        self._sent += len(piece)
        self.transport.write(piece)

    def data_received(self, data: bytes) -> None:
        sink = self.sink
        if sink is None:
            self.close()  # data without a request
        elif self._body is not None:
            self._forward(sink, self._body, data)
        else:
            self._read_head(sink, self._buffer + data if self._buffer else data)

    def _read_head(self, sink: ResponseSink, data: bytes) -> None:
        end = data.find(END)
        if end < 0 and len(data) <= MAX_HEAD:
            self._buffer = data
            return
        self._buffer = b""
        try:
            head = parse_response(data[: max(end, 0)])
        except Malformed:
            self._fail_malformed(sink)
            return
        status = head.status
        if status < 200:
            self._on_interim(sink, head, data, end)
            return
        self._status, self._reusable = status, head.keep_alive
        length = 0 if status in BODILESS or sink.method == "HEAD" else head.length
        if head.plain and len(data) == end + 4 + length:
            sink.forward_response(head, data, end)
            self._complete(sink)
            return
        sink.forward_head(head, data[:end], length)
        self.settling = b"text/event-stream" in head.lowered
        unchunked = length == CHUNKED and sink.reads_payload
        self._body = body = ChunkedBody(collect=True) if unchunked else new_body(length)
        if length == UNTIL_CLOSE:
            self._reusable = False
        self._forward(sink, body, data[end + 4 :])

    def _on_interim(self, sink: ResponseSink, head: ResponseHead, data: bytes, end: int) -> None:
        """Forward 100 Continue and the like; 101 turns the connection into a tunnel."""
        rest = data[end + 4 :]
        if head.status == 101:
            sink.start_tunnel(self, data[: end + 4], rest)
            return
        sink.forward_interim(data[: end + 4])
        if rest:
            self._read_head(sink, rest)

    def _forward(self, sink: ResponseSink, body: BodyReader, data: bytes) -> None:
        try:
            used = body.feed(data)
        except Malformed:
            self._fail_malformed(sink)
            return
        if used < len(data):
            self._reusable = False  # bytes beyond the response
            data = data[:used]
        if isinstance(body, ChunkedBody) and body.collecting:
            data = body.take_payload()
        if data:
            sink.write(data)
        if body.done:
            self._complete(sink)

    def _complete(self, sink: ResponseSink) -> None:
        self.sink = self._body = None
        now = sink.now()
        if self._paused:
            self.resume()
        # Before `finish`, which may dispatch a queued request to this replica: it then reuses the connection.
        if self._reusable and sink.body_complete:
            self.replica.put_idle(self, now)
            if self.settling:
                asyncio.get_running_loop().call_later(SETTLE_S, setattr, self, "settling", False)
        else:
            self.close()
        sink.finish(self._status, now)

    def _fail_malformed(self, sink: ResponseSink) -> None:
        self.sink = None
        self.abort()
        sink.on_connection_lost(False)

    def pause_writing(self) -> None:
        if self.sink is not None:
            self.sink.pause_body()

    def resume_writing(self) -> None:
        if self.sink is not None:
            self.sink.resume_body()

    def close(self) -> None:
        self.closing = True
        self.transport.close()

    def abort(self) -> None:
        """Reset the connection, so that the replica can cancel its work."""
        self.closing = True
        self.transport.abort()


def never_delivered(connection: socket.socket, sent_before: int, eof: bool) -> bool:
    """Whether no byte after the first `sent_before` bytes was received by the peer; False where unknown.

    `eof`: the peer's FIN has come, whether or not a RST came after it.
    """
    # The kernel counts the bytes that the peer has acknowledged, and a FIN acknowledges everything that arrived before
    # it. If the FIN came and no byte of the request is acknowledged, the connection was closed before the request
    # arrived. Everything else may have been acted upon. A RST alone proves nothing: a process that dies with unread
    # bytes resets the connection without acknowledging what it had read.
    if not eof:
        return False
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED + 8)
    except OSError:
        return False
    if len(info) < _BYTES_ACKED + 8:  # a kernel without the field
        return False
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    return bool(acknowledged <= sent_before + _SYN)
