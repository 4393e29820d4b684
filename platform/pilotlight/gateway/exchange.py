"""One request on its way: from the client's connection to a place on a replica, and its answer back.

It waits for the place if it must, with as much of its body as HELD_BODY allows; the rest stays with the client until
there is a connection to send it on. It is sent again only when its replica cannot have received it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pilotlight.contract import HEADER_COLD_START, HEADER_REQUEST_ID
from pilotlight.gateway.backend import DOUBT_S, LiveBackend
from pilotlight.gateway.gate import Refusal
from pilotlight.gateway.preparing import Prepared
from pilotlight.gateway.replica import LiveReplica
from pilotlight.gateway.replies import BROKEN, LATE, rendered
from pilotlight.gateway.tunnel import join
from pilotlight.wire.heads import CHUNKED, UNTIL_CLOSE, ResponseHead, passed_on, response_lines

if TYPE_CHECKING:
    from pilotlight.gateway.connection import Client
    from pilotlight.gateway.upstream import Upstream

HELD_BODY: Final = 1 << 20
_ID_LINE: Final = f"\r\n{HEADER_REQUEST_ID}:".encode()
_TAIL: Final = b"\r\n"


class Exchange:
    __slots__ = (
        "_cold_ms", "_pieces", "_prepared", "_read", "_tunnelled", "arrived", "backend", "began", "client", "cold",
        "kept", "method", "minor", "over", "replica", "request_id", "sent_at", "upstream", "whole",
    )  # fmt: skip

    def __init__(self, client: "Client", prepared: Prepared, request_id: str, now: float) -> None:
        head = prepared.head
        self.client = client
        self.method = head.method
        self.minor = head.minor
        self.request_id = request_id
        self.arrived = now
        self.sent_at = 0.0  # 0: no byte of it has left
        self.cold = False
        self.whole = False  # the request has been read to its end
        self.began = False  # the client has got some of the answer
        self.over = False
        self.backend: LiveBackend | None = None
        self.replica: LiveReplica | None = None
        self.upstream: Upstream | None = None
        self._prepared = prepared
        self._pieces: list[bytes] | None = []  # of the body; None once they are too many to be kept
        self._read = 0  # bytes of the body so far
        self.kept = 0  # those of them that are in the pieces, and so in the plane's room
        self._cold_ms = -1
        self._tunnelled = False

    @property
    def key(self) -> tuple[str, str]:
        return self._prepared.key

    @property
    def tag(self) -> str:
        return self._prepared.tag

    def now(self) -> float:
        return self.client.plane.clock()

    def more(self, piece: bytes) -> None:
        """A further piece of the request's body."""
        self._read += len(piece)
        if self.upstream is not None:
            if self._pieces is not None:
                self._keep(piece, self._pieces)
                self._drop_excess()
            self.upstream.send_more(piece)
        elif self._pieces is not None:
            self._keep(piece, self._pieces)
            if self.backend is not None and self.replica is None and self.backend.turns_away(self):
                return
            if self._read > HELD_BODY:
                self.client.pause()

    def _keep(self, piece: bytes, pieces: list[bytes]) -> None:
        pieces.append(piece)
        self.kept += len(piece)
        self.client.plane.room.kept += len(piece)

    def drop(self) -> None:
        """It will not be sent again."""
        self._pieces = None
        self.client.plane.room.kept -= self.kept
        self.kept = 0

    def _drop_excess(self) -> None:
        """Of what a replica has: it is kept for another attempt, which is worth no other request's place."""
        if self._read > HELD_BODY or self.client.plane.room.full:
            self.drop()

    def beginning(self, size: int) -> bytes:
        """What has come of the body, up to `size` bytes."""
        return b"".join(self._pieces or ())[:size]

    def tell(self, headers: Mapping[str, str]) -> None:
        """Headers of ours for the replica, in place of what the client may have said by their names."""
        names = {name.lower().encode() for name in headers}
        lines = self._prepared.start.split(b"\r\n")[:-1]
        kept = [line for line in lines if line.partition(b":")[0].lower() not in names]
        kept += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
        self._prepared = self._prepared._replace(start=b"\r\n".join(kept) + b"\r\n")

    def take(self, replica: LiveReplica, now: float) -> None:
        self.replica = replica
        if self.cold:
            self._cold_ms = int((now - self.arrived) * 1000)
        upstream = replica.pop()
        if upstream is None:
            replica.connect(self)
        else:
            self._send(upstream, now)

    def connected(self, replica: LiveReplica, upstream: "Upstream") -> None:
        if self.over:
            replica.keep(upstream, self.now())
        elif replica.retired:
            upstream.close()
            self._again()
        else:
            self._send(upstream, self.now())

    def unconnected(self, replica: LiveReplica, reason: str) -> None:
        if not replica.retired and not replica.shunned(self.now()):
            self.client.plane.unreachable(replica, f"no connection: {reason}")
        if not self.over:
            assert self.backend is not None
            self.backend.shun(replica, self.now())
            self._again()

    def _send(self, upstream: "Upstream", now: float) -> None:
        prepared = self._prepared
        self.upstream = upstream
        self.sent_at = now
        tail = _TAIL if prepared.request_id else f"X-Request-Id: {self.request_id}\r\n\r\n".encode()
        pieces = self._pieces
        assert pieces is not None
        if not self.whole:
            self.client.resume()  # before the sending, which may pause it again
        upstream.send(self, [prepared.start, tail, *pieces])
        self._drop_excess()

    def _again(self) -> None:
        """To another replica, or back to the head of the line: this one has not seen the request."""
        backend, replica = self.backend, self.replica
        assert backend is not None
        assert replica is not None
        self.backend = self.replica = self.upstream = None
        self.sent_at = 0.0
        backend.counts.leave(self.now())
        backend.leave(replica)
        self.client.plane.dispatch(self, first=True)

    def pass_plain(self, head: ResponseHead, data: bytes, end: int) -> None:
        """A whole answer, whose head needs at most a line more."""
        self.began = True
        close = self.closes(head.length)
        if self._cold_ms < 0 and not close and _ID_LINE in head.lowered:
            self.client.write(data)
        else:
            self.client.write(b"".join((data[: end + 2], self._added(head, close), data[end + 2 :])))
        self.client.close_after = close

    def pass_head(self, head: ResponseHead, raw: bytes, length: int) -> None:
        """The head of an answer that is streamed, without what concerned the connection to the replica."""
        self.began = True
        self.drop()
        close = self.closes(length)
        opened = length == CHUNKED and self.minor == 0
        first, lines = response_lines(raw)
        kept = [line.raw for line in passed_on(lines) if not (opened and line.name == "transfer-encoding")]
        start = b"\r\n".join((b"HTTP/1.1" + first[8:], *kept))
        self.client.write(start + b"\r\n" + self._added(head, close) + b"\r\n")
        self.client.close_after = close

    def pass_interim(self, raw: bytes) -> None:
        if self.minor:
            self.client.write(raw)

    def write(self, data: bytes) -> None:
        self.client.write(data)

    def closes(self, length: int = 0) -> bool:
        """Whether the client's connection ends with this answer."""
        if not self.whole or length == UNTIL_CLOSE or not self._prepared.head.keep_alive:
            return True
        return self.client.plane.closing

    def _added(self, head: ResponseHead, close: bool) -> bytes:
        lines = b"" if _ID_LINE in head.lowered else f"{HEADER_REQUEST_ID}: {self.request_id}\r\n".encode("latin-1")
        if self._cold_ms >= 0:
            lines += f"{HEADER_COLD_START}: {self._cold_ms}\r\n".encode()
        return lines + b"Connection: close\r\n" if close else lines

    def tunnel(self, upstream: "Upstream", head: bytes, rest: bytes) -> None:
        """Both agreed to speak something else from here on; the place on the replica stays taken until they end."""
        if not self._prepared.head.upgrade or not self.whole:
            upstream.exchange = None
            upstream.abort()
            self.lost(False)
            return
        self.began = self._tunnelled = True
        self.client.write(head + rest)
        join(self.client.transport, upstream.hand_over(), self.client.taken(), self._end_tunnel)

    def _end_tunnel(self) -> None:
        self._leave(101, self.now())
        self.client.connection_lost(None)

    def finish(self, status: int, now: float) -> None:
        """The answer is with the client."""
        self._leave(status, now)
        self.client.done(now)

    def lost(self, never_delivered: bool) -> None:
        """The connection to the replica ended before the answer did."""
        if never_delivered and self._pieces is not None and not self.began:
            self._again()
            return
        assert self.backend is not None
        assert self.replica is not None
        if not self.replica.shunned(self.now()):  # told once, however many requests end with it
            self.client.plane.unreachable(self.replica, "closed the connection without an answer")
        self.backend.shun(self.replica, self.now(), DOUBT_S)
        self.backend.counts.lost += self.whole and not self.began  # half a request is nobody's to answer
        self._fail(BROKEN)

    def expire(self, now: float) -> None:
        """Ends it when the route's time for an answer is over; a tunnel has no such end."""
        assert self._prepared.route is not None
        if self.sent_at and not self._tunnelled and now - self.sent_at > self._prepared.route.route.timeout_s:
            self._let_go()
            self._fail(LATE)

    def _fail(self, refusal: Refusal) -> None:
        """An answer that has begun can only be broken off."""
        self._leave(0 if self.began else refusal.status, self.now())
        if self.began:
            self.client.abort()
        else:
            self.answer(refusal)

    def refuse(self, refusal: Refusal) -> None:
        """No replica will get it."""
        self.over = True
        self.answer(refusal)

    def answer(self, refusal: Refusal) -> None:
        self.reply(rendered(refusal, self.request_id, self.closes(), self.method == "HEAD"))

    def reply(self, data: bytes) -> None:
        """The gateway's own words."""
        self.client.close_after = self.closes()
        self.client.write(data)
        self.client.done(self.now())

    def spoil(self, refusal: Refusal) -> None:
        """The client's own bytes turned out to be no request: whatever was begun ends."""
        self._let_go()
        if self.backend is not None and self.replica is None:
            self.backend.withdraw(self)
            self.backend, self.over = None, True
        self._fail(refusal)

    def abandon(self) -> None:
        """The client has gone."""
        self.drop()
        self._let_go()
        if self.backend is not None and self.replica is None:
            self.backend.withdraw(self)
        elif self.backend is not None and self.replica is not None and not self.over:
            self.backend.counts.leave(self.now())
            self.backend.leave(self.replica)
        self.over = True

    def _let_go(self) -> None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None and not self._tunnelled:
            upstream.exchange = None
            upstream.abort()

    def _leave(self, status: int, now: float) -> None:
        """Gives the place back, once."""
        backend, replica = self.backend, self.replica
        if self.over or backend is None:
            return
        self.over = True
        backend.counts.answered(now, status, self.sent_at or now)
        if replica is not None:
            backend.leave(replica)
