"""A client's connection: reads requests one after another and writes responses in the same order.

The head decides on the route; the body is then read as fast as its consumer takes it. Pipelined requests stay in the
buffer until the response before them is written.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, cast

from pilotlight.gateway.proxy.body_routing import USAGE_WAIT_S, serve_models_api, submit_model_request
from pilotlight.gateway.proxy.interfaces import PlaneView
from pilotlight.gateway.proxy.model_routes import unknown_service
from pilotlight.gateway.proxy.prepare_request import MODELS_PAGE, PreparedRequest, is_loopback, prepare
from pilotlight.gateway.proxy.proxied_request import ProxiedRequest
from pilotlight.gateway.proxy.responses import (
    BODY_TIMEOUT,
    HEAD_TIMEOUT,
    HEAD_TOO_LONG,
    INTERIM_RESPONSE,
    METHOD_NOT_ALLOWED,
    NO_ROUTE,
    ErrorResponse,
    render_error,
    render_page,
)
from pilotlight.gateway.proxy.upstream import FlowControlledProtocol
from pilotlight.gateway.routing_table import RouteKey
from pilotlight.wire.http1 import END
from pilotlight.wire.http1_strict_parser import MAX_HEAD, BodyReader, Malformed, new_body, parse_request

_TCP_INFO: Final = 11
_CLOSED: Final = 7  # TCP_CLOSE, the first byte of Linux' struct tcp_info
READ_AHEAD: Final = 1 << 18  # bytes of pipelined requests
MAX_CACHED_HEAD: Final = 1 << 12  # longer heads are parsed each time: there may be many idle connections
HEAD_TIMEOUT_S: Final = 30.0
MODEL_TIMEOUT_S: Final = 60.0  # until the body of a request to /v1 has shown its model
IDLE_TIMEOUT_S: Final = 75.0
LINGER_S: Final = 5.0  # for a client that is still sending an unread body to notice the response


class ClientConnection(FlowControlledProtocol):
    __slots__ = (
        "_body", "_buffer", "_cached_head", "_eof", "_head_incomplete", "_lingering", "_loopback", "_port_route",
        "_prepared", "_probed", "_scheme", "_write_blocked", "close_after", "on_body", "peer", "plane",
        "request", "state_since",
    )  # fmt: skip

    def __init__(self, plane: PlaneView, port_route: RouteKey | None, loopback: bool = False) -> None:
        super().__init__()
        self.plane = plane
        self.peer = ""
        self.request: ProxiedRequest | None = None
        self.close_after = False
        self.on_body: Callable[[bytes], None] | None = None  # called with further pieces of a body that is waited for
        self.state_since = plane.clock()  # start of being idle, of reading a head, or of lingering
        self._port_route, self._loopback = port_route, loopback
        self._buffer = b""
        self._cached_head = b""
        self._prepared: PreparedRequest | None = None  # of the cached head
        self._body: BodyReader | None = None  # of the request being read
        self._head_incomplete = False
        self._eof = False  # the client sends nothing more, but may wait for its response
        self._probed = False  # an interim response was written to see if a half-closed client still reads
        self._write_blocked = False  # the client does not read its response
        self._lingering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) else ""
        self._scheme = "https" if transport.get_extra_info("sslcontext") is not None else "http"
        self.plane.add_client(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request; also called at the end of a tunnel."""
        self.plane.clients.discard(self)
        request, self.request = self.request, None
        if request is not None:
            request.on_client_closed()

    def eof_received(self) -> bool:
        """Stay open while complete requests are unanswered: the client may only have half-closed."""
        request = self.request
        unanswered = request.body_complete if request is not None else bool(self._buffer) and not self._head_incomplete
        if unanswered and not self._eof and not self._lingering:
            self._eof = True
        return self._eof

    def data_received(self, data: bytes) -> None:
        if self._body is not None:
            self._feed(self._body, data)
            return
        if self._buffer:
            data = self._buffer + data
        if self.request is None and not self._write_blocked and not self._lingering:
            self._read_request(data)
        elif not self._lingering:
            self._buffer = data
            if len(data) > READ_AHEAD:
                self.pause()

    def _read_request(self, data: bytes) -> None:
        """Start the first request in `data` once its head is complete."""
        end = data.find(END)
        if end < 0 or end > MAX_HEAD:
            self._await_head(data)
            return
        head = data[:end]
        prepared = self._prepared
        if prepared is None or head != self._cached_head or prepared.routing is not self.plane.routing:
            try:
                prepared = prepare(
                    self.plane.routing, parse_request(head), self.peer, self._port_route, self._loopback, self._scheme
                )
            except Malformed as error:
                self._reject(ErrorResponse(error.status, str(error)))
                return
            self._cached_head, self._prepared = (head, prepared) if end <= MAX_CACHED_HEAD else (b"", None)
        self._head_incomplete = False
        self._start(prepared, data, end + 4)

    def _await_head(self, data: bytes) -> None:
        self._buffer = data
        if self._eof:
            self.transport.close()  # the rest will not come
        elif len(data) > MAX_HEAD:
            self._reject(HEAD_TOO_LONG)
        elif data.count(b"\n") != data.count(b"\r\n"):
            self._reject(ErrorResponse(400, "a line of the head does not end with CR LF"))
        elif not self._head_incomplete:
            self._head_incomplete, self.state_since = True, self.plane.clock()

    def _start(self, prepared: PreparedRequest, data: bytes, start: int) -> None:
        plane = self.plane
        request = ProxiedRequest(self, prepared, prepared.request_id or plane.new_request_id(), plane.clock())
        self.request = request
        stop = start + prepared.head.length
        if start <= stop <= len(data):
            request.body_complete = True
            self._buffer = data[stop:]
            if stop > start:
                request.add_body(data[start:stop])
        else:
            self._buffer = b""
            self._body = new_body(prepared.head.length)
            self._feed(self._body, data[start:])
        if self.request is request:  # otherwise its body was malformed
            self._admit(request, prepared)

    def _admit(self, request: ProxiedRequest, prepared: PreparedRequest) -> None:
        route = prepared.route
        if route is None:
            if prepared.page == MODELS_PAGE:
                serve_models_api(request, lambda routed: self._admit(routed, routed.prepared))
            else:
                self._serve_own_page(request, prepared)
            return
        admission, headers, client = self.plane.admission, prepared.head.headers, None
        if route.observed:
            client = admission.authenticate(route.route, headers)
            request.observe(client if isinstance(client, str) else "")
        if not prepared.component:
            error = admission.admit(route.route, headers, self.peer, client)
            if error is not None:
                request.reject(error)
                return
        if prepared.has_prompt or route.route.has_tokens:
            submit_model_request(request)
        else:
            self.plane.submit(request, route, prepared.tag)

    def _serve_own_page(self, request: ProxiedRequest, prepared: PreparedRequest) -> None:
        page = self.plane.pages.get(prepared.page)
        if prepared.error is NO_ROUTE:
            allowed = self.plane.admission.allows(prepared.head.headers)
            routes = (live.route for live in prepared.routing.routes.values() if not live.route.internal)
            request.reject(unknown_service(prepared.head.target, filter(allowed, routes)))
        elif page is None:
            message = f"the gateway does not serve /{prepared.page}; services are below their names: /NAME/v2"
            request.reject(prepared.error or ErrorResponse(404, message))
        elif prepared.page in self.plane.loopback_pages and not (
            is_loopback(self.peer) and "x-forwarded-for" not in prepared.head.headers
        ):
            request.reject(ErrorResponse(403, f"/{prepared.page} is for local clients only; scrape it on that machine"))
        elif request.method not in {"GET", "HEAD"}:
            request.reject(METHOD_NOT_ALLOWED)
        else:
            request.send_response(render_page(*page(), request.closes_connection(), request.method == "HEAD"))

    def _feed(self, body: BodyReader, data: bytes) -> None:
        request = self.request
        if request is None:
            return  # answered before its body was complete; the rest is not read
        try:
            used = body.feed(data)
        except Malformed as error:
            request.cancel(ErrorResponse(400, f"the request's body is malformed: {error}"))
            return
        if body.done:
            self._body = None
            request.complete_body()
            self._buffer = data[used:]
            data = data[:used]
        if data:
            request.add_body(data)
        if self.on_body is not None:
            self.on_body(data)

    def _reject(self, error: ErrorResponse) -> None:
        """Answer a malformed head and close: the start of the next request is unknown."""
        self.close_after = True
        self.write(render_error(error, self.plane.new_request_id(), close=True))
        self._linger()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def request_done(self, now: float) -> None:
        """Continue with the next request: this one's response is written."""
        if self.request is not None:
            self.request.drop_body()
        self.request = None
        self.state_since = now
        if self._body is not None:
            self._linger()
        elif self.close_after or (self._eof and not self._buffer):
            self.transport.close()
        else:
            self._continue()

    def _continue(self) -> None:
        if self._paused:
            self.resume()
        if self._buffer and not self._write_blocked:
            asyncio.get_running_loop().call_soon(self._resume_buffered)

    def _resume_buffered(self) -> None:
        if self.request is None and self._body is None and not self.transport.is_closing():
            data, self._buffer = self._buffer, b""
            if data and not self._write_blocked:
                self._read_request(data)

    def _linger(self) -> None:
        # Closing with unread data would send RST, which discards a response that the client has not read yet.
        self._lingering, self._body, self._buffer = True, None, b""
        self.state_since = self.plane.clock()
        self.resume()
        if not self.transport.is_closing():
            self.transport.write_eof()

    def take_buffer(self) -> bytes:
        """Return the bytes read beyond the request, for a tunnel."""
        data, self._buffer = self._buffer, b""
        return data

    def pause_writing(self) -> None:
        self._write_blocked = True
        if self.request is not None and self.request.upstream is not None:
            self.request.upstream.pause()

    def resume_writing(self) -> None:
        self._write_blocked = False
        if self.request is None:
            self._continue()
        elif self.request.upstream is not None:
            self.request.upstream.resume()

    @property
    def busy(self) -> bool:
        """Whether a request is being read or answered, or its response is not yet sent."""
        return self.request is not None or bool(self._buffer) or self.transport.get_write_buffer_size() > 0

    def close(self) -> None:
        """Close at the end of the process; a request that is still unanswered is aborted."""
        if self.request is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Close a connection that is idle for too long; fail a request with an overdue head or response."""
        if self._eof and self._client_disconnected():
            self.transport.abort()
            return
        if self.request is not None:
            unrouted = self.request.prepared.route is None
            if not unrouted and self.request.backend is not None:
                self.request.check_timeout(now)
            elif now - self.request.arrived_at > MODEL_TIMEOUT_S + (0.0 if unrouted else USAGE_WAIT_S):
                self.request.cancel(BODY_TIMEOUT)
            return
        waited = now - self.state_since
        if self._lingering or self._write_blocked:
            if waited > (LINGER_S if self._lingering else HEAD_TIMEOUT_S):
                self.transport.abort()
        elif self._head_incomplete and waited > HEAD_TIMEOUT_S:
            self._reject(HEAD_TIMEOUT)
        elif waited > self.plane.idle_s:
            self.transport.close()

    def _client_disconnected(self) -> bool:
        """Whether a half-closed client has closed its connection; False where unknown."""
        # A half-closed and a fully closed connection look the same until something is written; the latter answers with
        # RST. So an interim response is written, which every HTTP/1.1 client must skip, unless the response comes soon.
        request = self.request
        if not self._probed and request is not None and request.minor and not request.response_started:
            self._probed = True
            self.write(INTERIM_RESPONSE)
        # The event loop does not notice a RST while it does not read.
        connection = self.transport.get_extra_info("socket")
        try:
            return connection is not None and connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] == _CLOSED
        except OSError:
            return False
