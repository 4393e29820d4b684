"""The request of a gRPC call: from the bytes of its stream to messages, within the bytes that all calls may hold.

exchange.py derives from it, and answers. A small message that comes in one piece is asked at once; what arrives in
pieces, waits in a stream's inbox or is unpacked counts as bytes in flight for as long as it does.
"""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.http2.connection import Connection
from pilotlight.wire.http2.flow import STREAM_WINDOW
from pilotlight.wire.http2.outgoing import Stream
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.errors import Cancelled, PredictorError, QueueFull, Unreadable, Unsupported
from pilotlight_predictor.rpc.arrival import Arrival
from pilotlight_predictor.rpc.call_head import CallHead
from pilotlight_predictor.rpc.gathering import PREFIX, Gathering
from pilotlight_predictor.rpc.inbox import Inbox
from pilotlight_predictor.rpc.packed import AT_ONCE, STEP, Packed, Refused
from pilotlight_predictor.rpc.reply_blocks import ReplyBlocks
from pilotlight_predictor.rpc.service import RpcCall
from pilotlight_predictor.threads import FewThreads

FEWEST: Final = STREAM_WINDOW // 2  # bytes of data for which a client is told that it may send more


class Line(Protocol):
    """What a call needs of its connection."""

    http: Connection
    blocks: ReplyBlocks
    peer: str
    admission: Admission
    codecs: FewThreads
    max_message: int

    def answer(self, exchange: Any, message: bytes) -> None: ...
    def send(self, exchange: Any, message: bytes) -> None: ...
    def flush_soon(self) -> None: ...


class Intake(Stream):
    __slots__ = (
        "_arrival", "_gathering", "_held", "_inbox", "_line", "_message", "_owed", "call", "head", "over",
    )  # fmt: skip

    # Whoever derives from this sets them: a constructor more would cost every call.
    _line: Line
    head: CallHead
    over: bool
    call: RpcCall | None
    _gathering: Gathering | None
    _arrival: Arrival | None
    _inbox: Inbox | None
    _message: Buffer | Packed | None
    _held: int
    _owed: int

    def ask(self, message: Buffer) -> None:
        """The one message of a call is there."""

    def reject(self, error: PredictorError) -> None:
        """What has come of the request is as far as it gets."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """As the call's task."""

    def run_out_of_time(self) -> None:
        """The deadline runs."""

    def take(self, data: Buffer, start: int, end: int) -> None:
        if self.over:
            return
        if self.ended and self._gathering is None and self._inbox is None and end - start >= PREFIX.size:
            packed, length = PREFIX.unpack_from(data, start)
            if not packed and start + PREFIX.size + length == end and length <= self._line.max_message:
                self.ask(bytes(data[start + PREFIX.size : end]))
                return
        self._gather(data, start, end)

    def _gather(self, data: Buffer, start: int, end: int) -> None:
        """A message that has not come in one piece, or one of many."""
        gathering = self._gathering
        if gathering is None:
            gathering = self._gathering = Gathering(self._line.max_message, self.head.encoding)
        before = gathering.held
        self._owed += end - start
        try:
            for message in gathering.feed(data, start, end):
                self._put(message)
            if self.ended:
                self._complete(gathering)
            else:
                self._account()
                if self._arrival is None or (gathering.held is not None and gathering.held is not before):
                    self._expect_more()
        except QueueFull as error:
            self._make_room(gathering, error)
        except PredictorError as error:
            self.reject(error)

    def _make_room(self, gathering: Gathering, error: QueueFull) -> None:
        """A stream goes on without the messages that there is no room for, the newest first."""
        inbox = self._inbox
        while inbox is not None and self.head.post.answers_each:
            if gathering.size:
                gathering.skip()
                inbox.put(Refused.by(error))
            elif not inbox.give_up(error):
                break
            with suppress(QueueFull):
                self._account()
                if self.ended:
                    inbox.end()
                return
        self.reject(error)

    def _expect_more(self) -> None:
        """A message has begun to arrive. The deadline of a call that has no task yet runs as well."""
        if self._arrival is None:
            self._arrival = Arrival(self._arrived, self._stalled)
            self.run_out_of_time()
        self._arrival.begins()

    def _arrived(self) -> int | None:
        assert self._gathering is not None
        if self._inbox is not None and (self._gathering.held is None or self._gathering.skips):
            return None
        return self._gathering.size + len(self._message or b"")

    def _stalled(self) -> None:
        self.reject(Cancelled("the message has stopped arriving"))

    def _put(self, message: Buffer | Packed) -> None:
        if self._inbox is not None:
            self._inbox.put(message)
        elif self._message is not None:
            raise Unsupported("the method takes one message, and the call has several")
        else:
            self._message = message

    def _complete(self, gathering: Gathering) -> None:
        if gathering.within:
            raise Unreadable("the call ends within a message")
        if self._inbox is not None:
            self._account()
            self._inbox.end()
        elif self._message is None:
            raise Unreadable("the call has no message")
        else:
            if self._arrival is not None:
                self._arrival.stop()
            self._ask_plain(self._message)

    def _ask_plain(self, message: Buffer | Packed) -> None:
        plain = message.unpack(AT_ONCE) if isinstance(message, Packed) else message
        if plain is not None:
            self._release()
            self.ask(plain)
        elif isinstance(message, Packed):
            self._account()
            self.run(self._ask_later(message))

    async def _ask_later(self, packed: Packed) -> None:
        """Unpacks in a thread, step by step: what it becomes counts while it grows."""
        try:
            while (plain := await self._line.codecs.run(lambda: packed.unpack(STEP))) is None:
                self._account()
        except PredictorError as error:
            self.reject(error)
            return
        self._release()
        self.ask(plain)
        self._line.flush_soon()

    def _account(self) -> None:
        """What waits counts as bytes in flight; the client may send on unless its messages pile up."""
        if self.over:
            return
        inbox, gathering = self._inbox, self._gathering
        waiting = (inbox.size if inbox is not None else len(self._message or b"")) + (
            gathering.size if gathering else 0
        )
        if waiting > self._held:
            self._line.admission.take(waiting - self._held)
        else:
            self._line.admission.give_back(self._held - waiting)
        self._held = waiting
        if self._owed >= FEWEST and not self.ended and (inbox is None or inbox.empty):
            self._line.http.grant(self, self._owed)
            self._owed = 0
            self._line.flush_soon()

    def _release(self) -> None:
        self._line.admission.give_back(self._held)
        self._held = 0
