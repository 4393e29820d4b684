"""Where every gRPC call arrives: gate, byte budget, handler, metrics, and errors as statuses.

A connection finds the post of a method by its path. Where there is something to ask of the caller, that is done before
the message is read: nobody fills the memory who may not even call.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pilotlight_predictor.access import Action
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.calls import Reply
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.rpc.call_head import CallHead
from pilotlight_predictor.rpc.packed import Refused
from pilotlight_predictor.rpc.service import Messages, Method, RpcCall, Service, nobody_watches
from pilotlight_predictor.rpc.statuses import RpcRefusal, refusal
from pilotlight_predictor.server import Server
from pilotlight_predictor.watch import CallWatch

if TYPE_CHECKING:
    from pilotlight_predictor.rpc.connection import RpcConnection


class Caller(Protocol):
    """A call as the desk sees it: exchange.py has the one there is."""

    head: CallHead

    @property
    def peer(self) -> str: ...
    def time_left(self) -> float | None: ...
    async def write(self, answer: bytes) -> None: ...
    def finish(self) -> None: ...
    def refuse(self, refused: RpcRefusal) -> None: ...


class Later(NamedTuple):
    """An answer that has to be waited for: one of the two is called."""

    begin: Callable[[], Coroutine[Any, Any, bytes | RpcRefusal]]
    drop: Callable[[], None]


class Desk:
    """Everything in it runs on the event loop."""

    def __init__(
        self,
        server: Server,
        admission: Admission,
        services: Iterable[Service],
        watch: Callable[[], CallWatch | None],
    ) -> None:
        self._server, self.admission, self.watch = server, admission, watch
        self.codecs = server.codecs
        self.connections: set[RpcConnection] = set()
        self.closing = False
        self.in_flight = 0
        rows = [(service, method) for service in services for method in service.methods]
        self._posts = {f"/{row[0].name}/{row[1].name}": self._post(*row) for row in rows}

    def post(self, path: str) -> "Post | None":
        """None is answered UNIMPLEMENTED."""
        return self._posts.get(path)

    def _post(self, service: Service, method: Method) -> "Post":
        return Post(self, self._server, f"/{service.name}/{method.name}", service.protocol, method)

    @property
    def busy(self) -> bool:
        """Whether any call is under way."""
        return any(connection.http.streams for connection in self.connections)

    def close(self) -> None:
        """No further calls, and streams end at their next pause."""
        self.closing = True
        for connection in list(self.connections):
            connection.leave()


class Post:
    """The calls of one method."""

    def __init__(self, desk: Desk, server: Server, path: str, protocol: str, method: Method) -> None:
        self._desk, self._server, self._admission = desk, server, desk.admission
        self._path, self._protocol, self._method = path, protocol, method
        self.asks = self._admission.asks(method.action, protocol)
        self.streams = method.stream is not None
        self.answers_each = method.answer is not None  # a message of a stream may be refused for itself

    def arrived(self, caller: Caller) -> RpcCall:
        call = RpcCall(self._path, caller.head.headers, caller.peer, caller.time_left)
        watch = self._desk.watch()
        if watch is not None:
            watch.attach(call, self._path)
        return call

    def judged(self, call: RpcCall) -> RpcRefusal | None:
        """What a caller is told who may not call."""
        try:
            self._admit(call)
        except PredictorError as error:
            return _refused(call, error)
        return None

    def _admit(self, call: RpcCall) -> None:
        try:
            self._admission.admit(call.headers, call.peer, self._method.action, self._protocol)
        except PredictorError as error:
            self._count(call, error.status)
            raise

    def refused(self, call: RpcCall, error: PredictorError) -> RpcRefusal:
        """What a caller is told whose request did not get as far as an answer. That is all there is to tell of it."""
        self._count(call, error.status)
        told, call.finish = _refused(call, error), nobody_watches
        return told

    def answered(self, call: RpcCall) -> bytes | RpcRefusal | Later:
        """The answer to the one message in `call.body`, at once where nothing has to be waited for."""
        try:
            outcome = self._single(call)
        except Exception as error:
            return _refused(call, error)
        if not isinstance(outcome, bytes):
            return Later(lambda: self._awaited(call, outcome), lambda: self._dropped(call, outcome))
        if call.finish is not nobody_watches:
            call.finish(Reply(200))
        return outcome

    async def _awaited(self, call: RpcCall, outcome: Awaitable[bytes]) -> bytes | RpcRefusal:
        try:
            answer = await self._later(call, outcome)
        except asyncio.CancelledError:
            self.left(call)
            raise
        except Exception as error:
            return _refused(call, error)
        call.finish(Reply(200))
        return answer

    def _dropped(self, call: RpcCall, outcome: Awaitable[bytes]) -> None:
        """Its caller left before anything was done for it."""
        if asyncio.iscoroutine(outcome):
            outcome.close()
        self._count(call, _left(call))
        self.left(call)

    def left(self, call: RpcCall) -> None:
        call.finish(Reply(_left(call)))

    def _single(self, call: RpcCall) -> bytes | Awaitable[bytes]:
        """One message, within the byte budget, and counted where it is answered at once; raises what the client is to
        be told. What is awaited goes through `_later`."""
        assert self._method.answer is not None
        try:
            self._admission.check_room(len(call.body))
            outcome = self._method.answer(self._server, call)
        except Exception as error:
            self._count(call, error.status if isinstance(error, PredictorError) else 500)
            raise
        if isinstance(outcome, bytes):
            self._count(call, call.status)
        return outcome

    async def _later(self, call: RpcCall, outcome: Awaitable[bytes]) -> bytes:
        length, status = len(call.body), 500
        self._admission.take(length)
        self._desk.in_flight += 1
        try:
            answer = await outcome
            status = call.status
        except PredictorError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = _left(call)
            raise
        finally:
            self._desk.in_flight -= 1
            if call.lasts is None:
                self._admission.give_back(length)
            else:
                call.lasts.add_done_callback(lambda _: self._admission.give_back(length))
            self._count(call, status)
        return answer

    def _count(self, call: RpcCall, status: int) -> None:
        if self._method.action is not Action.INFER:
            return
        seconds, served = perf_counter() - call.started, call.served
        if served is None:
            self._server.observe_refusal(self._protocol, call.params, status, seconds)
        else:
            self._server.metrics.request(served.name, served.version, self._protocol, status).observe(seconds)

    async def stream(self, call: RpcCall, messages: Messages, caller: Caller) -> None:
        """Any number of messages, and any number of answers."""
        assert self._method.stream is not None
        answers = self._method.stream(self._server, call, messages, self._next_single)
        try:
            async with aclosing(cast("AsyncGenerator[bytes, None]", answers)):
                async for answer in answers:
                    await caller.write(answer)
        except asyncio.CancelledError:
            self.left(call)
            raise
        except Exception as error:
            caller.refuse(_refused(call, error))
            return
        caller.finish()
        call.finish(Reply(200))

    async def _next_single(self, call: RpcCall) -> bytes:
        """A stream counts in the rate limit as often as it asks."""
        self._admit(call)
        if isinstance(call.body, Refused):
            self._count(call, call.body.error.status)
            raise call.body.error
        outcome = self._single(call)
        return outcome if isinstance(outcome, bytes) else await self._later(call, outcome)


def _refused(call: RpcCall, error: Exception) -> RpcRefusal:
    told = refusal(error, call)
    call.finish(told)
    return told


def _left(call: RpcCall) -> int:
    """Why a call was cancelled, as a status: the client's deadline has passed, or the client has gone."""
    left = call.time_left()
    return 504 if left is not None and left <= 0 else 499
