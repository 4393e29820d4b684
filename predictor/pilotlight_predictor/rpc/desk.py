"""Where every gRPC call arrives: gate, byte budget, handler, metrics, and errors as statuses.

grpcio asks for the handler of a method. Where there is something to ask of the caller, that is done before the message
is read: nobody fills the memory who may not even call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import lru_cache
from time import perf_counter
from typing import Any
from urllib.parse import unquote

from pilotlight_predictor.access import Action
from pilotlight_predictor.admission import Admission
from pilotlight_predictor.calls import Reply
from pilotlight_predictor.errors import NotReady, PredictorError
from pilotlight_predictor.rpc.service import Messages, Method, RpcCall, Service
from pilotlight_predictor.rpc.statuses import refusal
from pilotlight_predictor.server import Server
from pilotlight_predictor.watch import CallWatch


class Desk:
    """Made once grpcio is imported; everything in it runs on the event loop."""

    def __init__(
        self,
        server: Server,
        admission: Admission,
        services: Iterable[Service],
        watch: Callable[[], CallWatch | None],
    ) -> None:
        self._server, self._admission, self._watch = server, admission, watch
        self.closing = asyncio.Event()  # streams end at their next pause
        self.in_flight = 0
        rows = [(service, method) for service in services for method in service.methods]
        self._handlers = {f"/{row[0].name}/{row[1].name}": self._handler(*row) for row in rows}

    def service(self, details: Any) -> Any:
        """grpcio's question; None is answered UNIMPLEMENTED."""
        return self._handlers.get(details.method)

    def _handler(self, service: Service, method: Method) -> Any:
        """Closures: grpcio knows a coroutine function only where nothing is wrapped around it."""
        import grpc

        post = _Post(self, self._server, self._admission, f"/{service.name}/{method.name}", service.protocol, method)

        async def unary(message: bytes, context: Any) -> bytes:
            return await post.answer(post.arrived(context), message, context)

        async def judged(messages: Messages, context: Any) -> bytes:
            call = post.arrived(context)
            await post.judge(call, context)
            return await post.answer(call, await anext(messages, b""), context)

        async def stream(messages: Messages, context: Any) -> None:
            await post.stream(messages, context)

        if method.stream is not None:
            return grpc.stream_stream_rpc_method_handler(stream)
        if self._admission.asks(method.action, service.protocol):
            return grpc.stream_unary_rpc_method_handler(judged)
        return grpc.unary_unary_rpc_method_handler(unary)

    def attach(self, call: RpcCall) -> None:
        watch = self._watch()
        if watch is not None:
            watch.attach(call, call.path)


class _Post:
    """The calls of one method."""

    def __init__(
        self, desk: Desk, server: Server, admission: Admission, path: str, protocol: str, method: Method
    ) -> None:
        self._desk, self._server, self._admission = desk, server, admission
        self._path, self._protocol, self._method = path, protocol, method

    def arrived(self, context: Any) -> RpcCall:
        call = RpcCall(
            self._path, headers_of(context.invocation_metadata()), peer_of(context.peer()), context.time_remaining
        )
        self._desk.attach(call)
        return call

    async def judge(self, call: RpcCall, context: Any) -> None:
        try:
            self._admission.admit(call.headers, call.peer, self._method.action, self._protocol)
        except PredictorError as error:
            self._count(call, error.status)
            await _refuse(call, error, context)

    async def answer(self, call: RpcCall, message: bytes, context: Any) -> bytes:
        call.body = message
        try:
            answer = await self._single(call)
        except Exception as error:
            await _refuse(call, error, context)
            raise
        call.finish(Reply(200))
        return answer

    async def _single(self, call: RpcCall) -> bytes:
        """One message, within the byte budget and counted; raises what the client is to be told."""
        assert self._method.answer is not None
        length, status = len(call.body), 500
        try:
            self._admission.take(length)
        except PredictorError as error:
            self._count(call, error.status)
            raise
        self._desk.in_flight += 1
        try:
            outcome = self._method.answer(self._server, call)
            answer = outcome if isinstance(outcome, bytes) else await outcome
            status = call.status
        except PredictorError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = _left(call)
            raise
        finally:
            self._desk.in_flight -= 1
            self._admission.give_back(length)
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

    async def stream(self, messages: Messages, context: Any) -> None:
        assert self._method.stream is not None
        call = self.arrived(context)
        await self.judge(call, context)
        incoming = _until(self._desk.closing, messages)
        answers = self._method.stream(self._server, call, incoming, self._next_single)
        try:
            async for answer in answers:
                await context.write(answer)
        except Exception as error:
            await _refuse(call, error, context)
        call.finish(Reply(200))

    async def _next_single(self, call: RpcCall) -> bytes:
        """A stream counts in the rate limit as often as it asks."""
        try:
            self._admission.admit(call.headers, call.peer, self._method.action, self._protocol)
        except PredictorError as error:
            self._count(call, error.status)
            raise
        return await self._single(call)


async def _refuse(call: RpcCall, error: Exception, context: Any) -> None:
    """Ends the call: grpcio's `abort` raises."""
    import grpc

    told = refusal(error, call)
    call.finish(told)
    await context.abort(grpc.StatusCode[told.code], told.message, told.trailers)


def _left(call: RpcCall) -> int:
    """Why a call was cancelled, as a status: the client's deadline has passed, or the client has gone."""
    left = call.time_left()
    return 504 if left is not None and left <= 0 else 499


async def _until(closing: asyncio.Event, messages: Messages) -> AsyncIterator[bytes]:
    """The client's messages; a server that stops ends them between two of them."""
    stop = asyncio.ensure_future(closing.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(messages, None))
            try:
                await asyncio.wait({coming, stop}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not coming.done():
                    coming.cancel()
            if not coming.done():
                raise NotReady("the server is stopping; open another stream")
            message = coming.result()
            if message is None:
                return
            yield message
    finally:
        stop.cancel()


def headers_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """As HTTP's headers. `host` names this machine: no web page can make a browser speak gRPC to it."""
    headers = {"host": "localhost"}
    for name, value in metadata or ():
        if isinstance(value, str):
            headers[name] = f"{headers[name]}, {value}" if name in headers and name != "host" else value
    return headers


@lru_cache(1024)
def peer_of(peer: str) -> str:
    """`ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000` without family and port."""
    address = unquote(peer).partition(":")[2]
    return address.rpartition(":")[0].strip("[]")
