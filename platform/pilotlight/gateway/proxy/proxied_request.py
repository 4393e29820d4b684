"""One proxied HTTP/1.1 request: from the client's connection to a replica, and its response back.

While it is queued it buffers up to MAX_HELD_BODY bytes of its body; the rest stays with the client until there is an
upstream connection. It is retried on another replica only if its replica cannot have received it.
"""

from typing import Final

from pilotlight.contract import HEADER_COLD_START, HEADER_REQUEST_ID
from pilotlight.gateway.proxy.backend import MAX_HELD_BODY, SUSPECT_S, LiveBackend
from pilotlight.gateway.proxy.interfaces import Downstream
from pilotlight.gateway.proxy.model_routes import openai_error
from pilotlight.gateway.proxy.prefix_index import Prompt
from pilotlight.gateway.proxy.prepare_request import MODELS_PAGE, PreparedRequest, with_headers
from pilotlight.gateway.proxy.response_observers import Observation
from pilotlight.gateway.proxy.responses import BODY_TIMEOUT, CONNECTION_LOST, TIMED_OUT, ErrorResponse, render_error
from pilotlight.gateway.proxy.tunnel import start_tunnel
from pilotlight.gateway.proxy.upstream import LiveReplica, Upstream
from pilotlight.wire.http1_strict_parser import CHUNKED, UNTIL_CLOSE, ResponseHead, end_to_end_headers, response_lines

# A body that comes more slowly, after the first seconds, does not count as load: its client is what takes the time.
SLOW_BODY_S: Final = 5.0
MIN_BODY_RATE: Final = 1 << 14  # bytes a second
SHOWN_ID: Final = 128  # characters of an id, which clients may choose, in events
CLIENT_CLOSED: Final = 499
_ID_LINE: Final = f"\r\n{HEADER_REQUEST_ID}:".encode()
_TAIL: Final = b"\r\n"


class ProxiedRequest:
    __slots__ = (
        "_added", "_blocked", "_body", "_body_size", "_slow", "_tunnelled", "arrived_at", "backend", "body_complete",
        "buffered", "caller", "client", "cold", "finished", "max_hold_s", "method", "minor", "observation",
        "prepared", "prompt", "replica", "request_id", "response_started", "sent_at", "upstream", "usage_added",
    )  # fmt: skip

    def __init__(self, client: Downstream, prepared: PreparedRequest, request_id: str, now: float) -> None:
        head = prepared.head
        self.client, self.prepared, self.request_id = client, prepared, request_id
        self.method, self.minor = head.method, head.minor
        self.arrived_at, self.max_hold_s = now, prepared.max_hold_s
        self.sent_at = 0.0  # 0: nothing sent to a replica yet
        self.cold = self.body_complete = self.finished = self._tunnelled = False
        self._blocked = False  # its replica does not read the body
        self._slow = False  # its body comes slowly: it is not counted as load
        self.response_started = False  # some of the response has been written to the client
        self.prompt: Prompt | None = None
        self.caller = ""  # name of the authenticated client, where the request is observed
        self.observation: Observation | None = None
        self.usage_added = False
        self.backend: LiveBackend | None = None
        self.replica: LiveReplica | None = None
        self.upstream: Upstream | None = None
        self._body: list[bytes] | None = []  # buffered pieces; None once dropped: no retry is possible then
        self._body_size = self.buffered = 0  # bytes read so far; bytes in `_body`, counted in the plane's budget
        self._added = b""  # lines for the head of the response

    @property
    def key(self) -> tuple[str, str]:
        return self.prepared.key

    @property
    def tag(self) -> str:
        return self.prepared.tag

    @property
    def reads_payload(self) -> bool:
        return self.minor == 0 or self.observation is not None  # HTTP/1.0 has no chunks

    def now(self) -> float:
        return self.client.plane.clock()

    def observe(self, caller: str) -> None:
        """Start to observe the request, with what has come of its body."""
        self.caller = caller
        observer = self.client.plane.observe(self)
        if observer is not None:
            self.observation = Observation(observer, self.prepared.head.length)
            self.observation.add_request(b"".join(self._body or ()))

    def add_body(self, piece: bytes) -> None:
        """Forward a further piece of the request's body, or buffer it while no replica is assigned."""
        self._body_size += len(piece)
        if self.observation is not None:
            self.observation.add_request(piece)
        if self.upstream is not None:
            if self._body is not None:
                self._buffer(piece, self._body)
                self._drop_excess_body()
            self.upstream.send_body(piece)
        elif self._body is not None:
            self._buffer(piece, self._body)
            if self.backend is not None and self.replica is None and self.backend.reject_over_budget(self):
                return
            if self._body_size > MAX_HELD_BODY and not self.body_complete:  # else it would hide that the client left
                self.client.pause()

    def complete_body(self) -> None:
        """Count latency and load from here on, where the body came in pieces: before, the client was waited for."""
        self.body_complete = True
        if self.sent_at:
            self.sent_at = self.now()
        self._count_load()

    def _count_load(self) -> None:
        if self._slow and self.backend is not None:
            self._slow = False
            self.backend.counts.enter(self.now())

    def _buffer(self, piece: bytes, body: list[bytes]) -> None:
        body.append(piece)
        self.buffered += len(piece)
        self.client.plane.buffer_budget.used += len(piece)

    def drop_body(self) -> None:
        """Free the buffered body; the request cannot be retried afterwards."""
        self._body = None
        self.client.plane.buffer_budget.used -= self.buffered
        self.buffered = 0

    def _drop_excess_body(self) -> None:
        # Once sent, the body is buffered only for a retry: queued requests have precedence for the memory. Before, the
        # connection to the replica holds it, so it stays in the budget.
        if not self._blocked and (self._body_size > MAX_HELD_BODY or self.client.plane.buffer_budget.full):
            self.drop_body()

    def body_prefix(self, size: int) -> bytes:
        """Return the buffered beginning of the body, at most `size` bytes."""
        return b"".join(self._body or ())[:size]

    def rewrite(self, head: bytes, body: bytes | None = None) -> None:
        """Replace the upstream head, and the buffered body, of a request of which nothing is sent yet."""
        self.prepared = self.prepared._replace(upstream_head=head)
        if body is not None:
            if self.prepared.head.length == CHUNKED:
                self.prepared = self.prepared._replace(head=self.prepared.head._replace(length=len(body)))
            self.drop_body()
            self._body, self._body_size = [], len(body)
            self._buffer(body, self._body)

    def assign(self, replica: LiveReplica, now: float) -> None:
        assert self.backend is not None
        self.replica = replica
        if authority := replica.config.authority:
            self.prepared = self.prepared.for_host(authority)
        self._added = self.prepared.revision_line or self.backend.revision_line
        if self.cold:
            self._added += f"{HEADER_COLD_START}: {int((now - self.arrived_at) * 1000)}\r\n".encode()
        upstream = replica.take_idle()
        if upstream is None:
            replica.connect(self)
        else:
            self._send(upstream, now)

    def on_connected(self, replica: LiveReplica, upstream: Upstream) -> None:
        if self.finished:  # the client has disconnected; another request can use the connection
            replica.put_idle(upstream, self.now())
        elif replica.retired:
            upstream.close()
            self._retry()
        else:
            self._send(upstream, self.now())

    def on_connect_failed(self, replica: LiveReplica, reason: str) -> None:
        if not replica.retired and not replica.is_unhealthy(self.now()):
            self.client.plane.report_unreachable(replica, f"no connection: {reason}")
        if not self.finished:
            assert self.backend is not None
            self.backend.mark_unhealthy(replica, self.now())
            self._retry()  # without a connection nothing was sent: always safe

    def _send(self, upstream: Upstream, now: float) -> None:
        prepared = self.prepared
        self.upstream = upstream
        self.sent_at = now
        tail = _TAIL if prepared.request_id else f"X-Request-Id: {self.request_id}\r\n\r\n".encode()
        body = self._body
        assert body is not None
        if not self.body_complete:
            self.client.resume()  # before sending, which may pause it again
        upstream.send(self, [prepared.upstream_head, tail, *body])
        self._drop_excess_body()

    def _retry(self) -> None:
        """Dispatch the request again, at the head of the queue: its replica has not received it."""
        backend, replica = self.backend, self.replica
        assert backend is not None
        assert replica is not None
        self._count_load()
        self.backend = self.replica = self.upstream = None
        self.sent_at, self._blocked = 0.0, False
        backend.counts.leave(self.now())
        backend.release(replica)
        self.client.plane.dispatch(self, front=True)

    def forward_response(self, head: ResponseHead, data: bytes, end: int) -> None:
        """Write a complete response; its head (`data` up to `end`) needs at most additional lines."""
        self.response_started = True
        close = self.closes_connection(head.length)
        if self.observation is not None:
            data, end = self.observation.complete(head, data, end, self.minor, self.prepared.renamed)
        if not self._added and not close and _ID_LINE in head.lowered:
            self.client.write(data)
        else:
            self.client.write(b"".join((data[: end + 2], self._extra_headers(head, close), data[end + 2 :])))
        self.client.close_after = close

    def forward_head(self, head: ResponseHead, raw: bytes, length: int) -> None:
        """Write the head of a streamed response, without its hop-by-hop headers."""
        self.response_started = True
        self.drop_body()
        close = self.closes_connection(length)
        unchunked = length == CHUNKED and self.minor == 0  # HTTP/1.0 has no chunks
        first, lines = response_lines(raw)
        forwarded = [
            line.raw for line in end_to_end_headers(lines) if not (unchunked and line.name == "transfer-encoding")
        ]
        start = b"\r\n".join((b"HTTP/1.1" + first[8:], *forwarded, b""))
        if self.observation is not None:
            growth = self.observation.start(head.status, lines, length, self.minor, self.prepared.renamed)
            start = with_headers(start, {"Content-Length": str(length + growth)}) if growth else start
        self.client.write(start + self._extra_headers(head, close) + b"\r\n")
        self.client.close_after = close

    def forward_interim(self, raw: bytes) -> None:
        if self.minor:
            self.client.write(raw)

    def write(self, data: bytes) -> None:
        self.client.write(data if self.observation is None else self.observation.add(data))

    def pause_body(self) -> None:
        self._blocked = True
        if not self.body_complete:
            self.client.pause()

    def resume_body(self) -> None:
        self._blocked = False
        if self.upstream is not None:
            self._drop_excess_body()
        self.client.resume()

    def closes_connection(self, length: int = 0) -> bool:
        """Whether the client's connection is closed after this response."""
        if not self.body_complete or length == UNTIL_CLOSE or not self.prepared.head.keep_alive:
            return True
        return self.client.plane.closing

    def _extra_headers(self, head: ResponseHead, close: bool) -> bytes:
        identity = b"" if _ID_LINE in head.lowered else f"{HEADER_REQUEST_ID}: {self.request_id}\r\n".encode("latin-1")
        return self._added + identity + (b"Connection: close\r\n" if close else b"")

    def start_tunnel(self, upstream: Upstream, head: bytes, rest: bytes) -> None:
        """Handle 101 Switching Protocols; the replica's slot stays occupied until both connections are closed."""
        if not self.prepared.head.upgrade or not self.body_complete:
            upstream.sink = None
            upstream.abort()
            self.on_connection_lost(False)
            return
        self.response_started = self._tunnelled = True
        self.client.write(head + rest)
        start_tunnel(self.client.transport, upstream.detach(), self.client.take_buffer(), self._end_tunnel)

    def _end_tunnel(self) -> None:
        self._release(101, self.now())
        self.client.connection_lost(None)

    def finish(self, status: int, now: float) -> None:
        """Finish the request: its whole response has been written to the client."""
        if self.observation is not None:
            self.client.write(self.observation.finish())
        self._release(status, now)
        self.client.request_done(now)

    def on_connection_lost(self, never_delivered: bool) -> None:
        """Retry or fail the request: the upstream connection ended before the response did.

        `never_delivered`: the replica provably received none of it (`upstream.never_delivered`).
        """
        # A replica that may have received the request may have acted on it, so it is not sent twice. A retry also needs
        # the whole body so far, and a client that has seen nothing of a first response.
        if never_delivered and self._body is not None and not self.response_started:
            self._retry()
            return
        assert self.backend is not None
        assert self.replica is not None
        if not self.body_complete and not self.response_started:
            # Servers close the connection of a client that sends too slowly: the replica is not to blame for it.
            self._fail(CONNECTION_LOST)
            return
        if not self.replica.is_unhealthy(self.now()):  # one report, however many requests the replica takes with it
            reason = f"closed the connection without a response to request {self.request_id[:SHOWN_ID]}"
            self.client.plane.report_unreachable(self.replica, reason)
        self.backend.mark_unhealthy(self.replica, self.now(), SUSPECT_S)
        self.backend.counts.lost += not self.response_started
        self._fail(CONNECTION_LOST)

    def check_timeout(self, now: float) -> None:
        """Fail the request when the route's timeout has passed; tunnels have no timeout."""
        assert self.prepared.route is not None
        timeout_s = self.prepared.route.route.timeout_s
        if not self.body_complete and self.replica is not None and not self.response_started:
            self._check_body(now, timeout_s)
        elif self.sent_at and not self._tunnelled and now - self.sent_at > timeout_s:
            if self.replica is not None and self.replica.timed_out(now):
                reason = f"did not respond to request {self.request_id[:SHOWN_ID]} within {timeout_s:g} s"
                self.client.plane.report_unreachable(self.replica, reason)
            self._abort_upstream()
            self._fail(TIMED_OUT)

    def _check_body(self, now: float, timeout_s: float) -> None:
        """Fail a request whose body does not arrive in time, and count none as load whose body comes slowly."""
        waited = now - self.arrived_at
        if self.sent_at and now - self.sent_at > timeout_s:
            self._abort_upstream()
            self._fail(BODY_TIMEOUT)
        elif not self._slow and waited > SLOW_BODY_S and self._body_size < (waited - SLOW_BODY_S) * MIN_BODY_RATE:
            assert self.backend is not None
            self._slow = True
            self.backend.counts.leave(now)

    def _fail(self, error: ErrorResponse) -> None:
        self._release(0 if self.response_started else error.status, self.now())
        if self.response_started:
            self.client.abort()  # a reset, so that the truncated response is not taken for a complete one
        else:
            self.send_error(error)

    def reject(self, error: ErrorResponse) -> None:
        """Answer with an error instead of forwarding the request."""
        self.finished = True
        self.send_error(error)

    def send_error(self, error: ErrorResponse) -> None:
        self._end_observation(error.status, self.now())
        error = openai_error(error) if self.prepared.page == MODELS_PAGE else error
        self.send_response(render_error(error, self.request_id, self.closes_connection(), self.method == "HEAD"))

    def send_response(self, data: bytes) -> None:
        """Write a complete response of the gateway itself."""
        self.client.close_after = self.closes_connection()
        self.client.write(data)
        self.client.request_done(self.now())

    def cancel(self, error: ErrorResponse) -> None:
        """Fail the request, wherever it is by now: its body is malformed, or another engine failed that it needs."""
        self._abort_upstream()
        if self.replica is None:
            if self.backend is not None:
                self.backend.withdraw(self)
            self.backend, self.finished = None, True
        self._fail(error)

    def on_client_closed(self) -> None:
        """Cancel the request: its client has disconnected."""
        self._end_observation(CLIENT_CLOSED, self.now())
        self.drop_body()
        self._abort_upstream()
        if self.backend is not None and self.replica is None:
            self.backend.withdraw(self)
        elif self.backend is not None and self.replica is not None and not self.finished:
            self._count_load()
            self.backend.counts.leave(self.now())
            self.backend.release(self.replica)
        self.finished = True

    def _end_observation(self, status: int, now: float) -> None:
        if self.observation is not None:
            self.observation.end(status, now)
            self.observation = None

    def _abort_upstream(self) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None and not self._tunnelled:
            upstream.sink = None
            upstream.abort()

    def _release(self, status: int, now: float) -> None:
        """Release the replica's slot and count the response, once."""
        self._end_observation(status, now)
        backend, replica = self.backend, self.replica
        if self.finished or backend is None:
            return
        self.finished = True
        self._count_load()
        if not self.body_complete and (status == 408 or not self.response_started):
            backend.counts.leave(now)  # its client has not sent all of it
        else:
            backend.responded(self.prepared.adapter, now, status, self.sent_at or now)
        if replica is not None:
            backend.release(replica)
