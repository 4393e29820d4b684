"""One client's connection to the gRPC port: asyncio protocol over wire/http2.

Received bytes go to `http`, which opens a call per stream through `on_request`; frames are written at the end of each
loop iteration. A unary response that is ready at once is written in one piece: headers, message and trailers.
"""

import asyncio
import struct
from time import monotonic
from typing import Final, cast

from pilotlight.wire.http2 import frames as http2_frames
from pilotlight.wire.http2 import keepalive
from pilotlight.wire.http2.connection import Http2Connection
from pilotlight.wire.http2.frames import ConnectionFault
from pilotlight.wire.http2.hpack import HeaderField
from pilotlight.wire.http2.keepalive import Keepalive, KeepalivePolicy
from pilotlight_predictor.config.grpc_settings import GrpcSettings
from pilotlight_predictor.errors import Forbidden, QueueFull
from pilotlight_predictor.frontends.grpc.call import SMALL, GrpcCall
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcDispatcher
from pilotlight_predictor.frontends.grpc.headers import (
    ACCEPTED,
    KNOWN_DONE,
    KNOWN_HEAD,
    CallHead,
    ResponseHeaderBlocks,
    read_head,
)
from pilotlight_predictor.frontends.grpc.message_reader import PREFIX
from pilotlight_predictor.frontends.grpc.response_compression import response_encoding
from pilotlight_predictor.frontends.peer import peer_of
from pilotlight_predictor.frontends.tasks_and_timeouts import LEAST_RATE, SLOW_S

PREFACE_S: Final = 20.0  # time limit for the HTTP/2 connection preface
LINGER_S: Final = 0.1  # for a client to process GOAWAY, and from the last response to closing the connection
_ENDS: Final = http2_frames.END_HEADERS | http2_frames.END_STREAM
_BEFORE: Final = struct.Struct(f">IBI{len(KNOWN_HEAD)}sIBIBI")  # HEADERS frame, DATA frame header, message prefix
_BEHIND: Final = struct.Struct(f">IBI{len(KNOWN_DONE)}s")  # trailers
_HEADERS_WORD: Final = len(KNOWN_HEAD) << 8 | http2_frames.HEADERS
_TRAILERS_WORD: Final = len(KNOWN_DONE) << 8 | http2_frames.HEADERS
_NOT_HTTP2: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 43\r\nconnection: close\r\n\r\n"
    b"this port speaks gRPC: HTTP/2 without TLS.\n"
)


def keepalive_policy(settings: GrpcSettings) -> KeepalivePolicy:
    return KeepalivePolicy(
        settings.keepalive_time_ms / 1000,
        settings.keepalive_timeout_ms / 1000,
        settings.keepalive_permit_without_calls,
        settings.min_recv_ping_interval_ms / 1000,
        settings.max_ping_strikes,
    )


class GrpcConnection(asyncio.Protocol):
    """HTTP/2 connection of one client. Runs on the event loop."""

    def __init__(self, dispatcher: GrpcDispatcher, max_message: int) -> None:
        self.dispatcher, self.max_message = dispatcher, max_message
        self.admission, self.codecs = dispatcher.admission, dispatcher.codecs
        self.http = Http2Connection(self, monotonic)
        self.blocks = ResponseHeaderBlocks()
        self.peer = ""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._now = asyncio.get_running_loop().time
        self._keepalive = Keepalive(keepalive_policy(dispatcher.admission.settings.grpc), self._now())
        self._unread_check: asyncio.TimerHandle | None = None
        self._receiving = self._scheduled = self._lingering = False
        self._written = 0  # bytes in flight that the transport has taken, and perhaps not the socket

    @property
    def has_calls(self) -> bool:
        return bool(self.http.streams)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport)
        self._timer = asyncio.get_running_loop().call_later(
            PREFACE_S, lambda: None if self.http.preface_received else self.close()
        )
        self.dispatcher.connections.add(self)
        self._age_timer = self.dispatcher.limit_age(self)
        if self.admission.settings.grpc.keepalive_time_ms:
            self._check_keepalive()
        if self.dispatcher.closing:
            self.start_drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.dispatcher.connections.discard(self)
        self._transport = None
        for timer in (self._timer, self._age_timer, self._keepalive_timer, self._unread_check):
            if timer is not None:
                timer.cancel()
        self.http.drop_streams()
        self._release_written()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._receiving = True
        self._keepalive.last_received = self._now()
        try:
            self.http.receive(data)
        except ConnectionFault as fault:
            self.http.fail(fault)
            if not self.http.preface_received:
                self._transport.write(_NOT_HTTP2)
            self._flush()
            self.close()
        finally:
            self._receiving = False
        self._flush()

    def _check_keepalive(self) -> None:
        if self.http.out.paused:  # the server itself reads nothing: the time limit for the client's reading holds
            self._keepalive.last_received = self._now()
        action, seconds = self._keepalive.check(self._now(), self.has_calls)
        if action == keepalive.CLOSE:
            assert self._transport is not None
            self._transport.abort()
            return
        if action == keepalive.PING:
            self.http.ping()
            self._flush()
        self._keepalive_timer = asyncio.get_running_loop().call_later(seconds, self._check_keepalive)

    def on_ping(self) -> None:
        if self._keepalive.is_abuse(self._now(), self.has_calls, self.http.out.progress):
            raise ConnectionFault(http2_frames.ENHANCE_YOUR_CALM, keepalive.TOO_MANY_PINGS)

    def close(self) -> None:
        """Close after sending what was written; abort if the client does not read it within SLOW_S."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._abort_in(SLOW_S)

    def _abort_in(self, seconds: float) -> None:
        assert self._transport is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def flush_soon(self) -> None:
        """Flush at the next loop iteration, so that responses that are ready together share one write."""
        if not self._receiving and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        out, transport = self.http.out, self._transport
        while self.http.preface_received and out.frames and transport is not None and not transport.is_closing():
            large = out.bursting
            frames = out.take_frames()
            if large:
                transport.writelines(frames)
                out.pump()
            else:
                transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._written and not out.paused:
            self._release_written()
        if (out.ready or out.blocked) and self._unread_check is None:
            loop = asyncio.get_running_loop()
            self._unread_check = loop.call_later(SLOW_S, self._cancel_unread, out.backlog())
        if self.http.shutting_down and not self.http.streams and not self._lingering:
            # Calls sent before the client saw GOAWAY are refused, not lost with the connection.
            self._lingering = True
            asyncio.get_running_loop().call_later(LINGER_S, self.close)

    def release_when_written(self, length: int) -> None:
        """Release bytes in flight when the socket has taken all that is to be written now."""
        self._written += length

    def _release_written(self) -> None:
        self.admission.release(self._written)
        self._written = 0

    def _cancel_unread(self, before: dict[int, tuple[int, int]]) -> None:
        """Cancel streams of which the client has read nothing since `before`, to free their responses."""
        self._unread_check = None
        for number, left in self.http.out.backlog().items():
            if before.get(number) == left:
                stream = self.http.streams[number]
                stream.on_reset()
                self.http.reset(stream, http2_frames.CANCEL)
        self._flush()

    def pause_writing(self) -> None:
        """Stop reading and sending until the client reads; abort if it takes too long."""
        self.http.out.paused = True
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.pause_reading()
        self._abort_in(SLOW_S + self._transport.get_write_buffer_size() / LEAST_RATE)

    def resume_writing(self) -> None:
        self.http.out.paused = False
        if self._transport is not None and not self._transport.is_closing():
            if self._timer is not None:
                self._timer.cancel()
            self._keepalive.last_received = self._now()
            self._transport.resume_reading()
            self.http.out.pump()
            self._flush()

    def start_drain(self) -> None:
        """Send GOAWAY. Calls that arrive in the next LINGER_S are still served: the client could not safely retry.

        Streams end between two messages if the server stops; at the connection's maximum age they may go on.
        """
        self.http.announce_shutdown()
        self._end_streams()
        asyncio.get_running_loop().call_later(LINGER_S, self.stop_accepting)

    def stop_accepting(self) -> None:
        """Refuse new calls; the connection ends after the last response."""
        if self._transport is not None:
            self.http.shutdown()
            self._end_streams()

    def _end_streams(self) -> None:
        for stream in list(self.http.streams.values()) if self.dispatcher.closing else ():
            cast(GrpcCall, stream).end_stream()
        self.flush_soon()

    def parse_head(self, fields: list[HeaderField], whole: bool) -> CallHead:
        head = read_head(fields, whole)
        head.handler = self.dispatcher.handler(head.path)
        if head.handler is None:
            if not head.code:
                head.code, head.problem = "UNIMPLEMENTED", "Method not found!"
        elif head.handler.infers:
            head.response_encoding = response_encoding(self.admission.settings.grpc.compression, head.accepted)
        try:
            self.admission.check_site(head.headers)
        except Forbidden as error:
            head.code, head.problem = "PERMISSION_DENIED", str(error)
        return head

    def on_table_size(self, size: int) -> None:
        self.blocks.table_size(size)

    def on_request(self, number: int, head: CallHead, ended: bool) -> None:
        call = GrpcCall(self, number, head, ended=ended)
        self.http.streams[number] = call
        if head.malformed or head.http_status != 200 or head.code:
            self._reject(call, head)
            return
        call.start()
        if ended:
            call.on_data(b"", 0, 0)

    def _reject(self, call: GrpcCall, head: CallHead) -> None:
        if head.malformed:
            call.settle()
            self.http.reset(call, http2_frames.PROTOCOL_ERROR)
        elif head.http_status != 200:
            self.http.out.end(call, self.blocks.not_grpc(head.http_status))
            call.settle()
        else:
            call.fail(head.code, head.problem, (("grpc-accept-encoding", ACCEPTED),))

    def respond(self, call: GrpcCall, message: bytes, compressed: int = 0) -> None:
        """Send the only response of a unary call."""
        http, length, number = self.http, len(message) + PREFIX.size, call.number
        out = http.out
        if call.head.response_encoding or not self.blocks.indexed or not out.fits(call, length):
            try:
                call.send(message, compressed)
            except QueueFull as error:
                call.reject(error, counted=True)
                return
            out.end(call, self.blocks.success(waits=bool(call.pending)))
        else:
            # Frame headers are packed by hand: length and type in one word.
            word = length << 8 | http2_frames.DATA
            before = _BEFORE.pack(
                _HEADERS_WORD, http2_frames.END_HEADERS, number, KNOWN_HEAD, word, 0, number, 0, len(message)
            )  # fmt: skip
            behind = _BEHIND.pack(_TRAILERS_WORD, _ENDS, number, KNOWN_DONE)
            out.frames += (before, message, behind)
            out.window -= length
            if length > SMALL:
                out.burst += length
            http.response_complete(call)
        call.settle()

    def send(self, call: GrpcCall, message: bytes, compressed: int = 0) -> None:
        """Send one message, with the response headers before the first."""
        out, prefix = self.http.out, PREFIX.pack(compressed, len(message))
        if not call.headers_sent:
            call.headers_sent = True
            out.head(call, self.blocks.head(call.head.response_encoding))
        if len(message) <= SMALL:
            out.data(call, prefix + message)
        else:
            out.data(call, prefix)
            out.data(call, message)
