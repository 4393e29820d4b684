"""gRPC services as tables of methods, and the dispatch of calls: admission, byte budget, metrics, errors as statuses.

A connection looks up the MethodHandler by path. Callers are authorized before the message is read, so that an
unauthorized client cannot fill the memory.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol, cast

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.protobuf_codec import Message, decode, encode
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.forwarded_headers import HeaderForwarding
from pilotlight_predictor.frontends.grpc.headers import CallHead
from pilotlight_predictor.frontends.grpc.message_reader import RejectedMessage
from pilotlight_predictor.frontends.http.access_log import RequestObserver
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, valid_text
from pilotlight_predictor.frontends.http.router import TRITON_SERVICE, error_response
from pilotlight_predictor.frontends.restricted_apis import GRPC_PREFIX, RestrictedApis
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.server.handler_context import Server

_TRAILER_HEADERS: Final = (HEADER_REQUEST_ID, "Retry-After")


def unobserved(_: HttpResponse) -> None:
    pass


class ResponseWriter(Protocol):
    """Writer for all responses of a decoupled request but its last, independent of the order of other requests.

    `read_lock` is held while the message is decoded.
    """

    @property
    def read_lock(self) -> asyncio.Lock: ...
    def leave_order(self) -> None: ...
    async def write(self, response: bytes) -> None: ...


class GrpcRequest(HttpRequest):
    """One message of a client.

    `served` is the model version, once known: its metrics count the request. `time_left` returns the seconds to the
    client's deadline, None without one. `status` is the HTTP status for metrics; services that report errors within
    messages set it. `writer` is set within a stream, for several responses. `pending_thread` is work in a thread that
    still holds the message after the call was cancelled.
    """

    __slots__ = ("pending_thread", "served", "status", "time_left", "writer")

    def __init__(self, path: str, headers: Mapping[str, str], peer: str, time_left: Callable[[], float | None]) -> None:
        super().__init__("POST", path, "", headers, b"", peer, unobserved, perf_counter())
        self.served: ModelVersion | None = None
        self.time_left = time_left
        self.status = 200
        self.writer: ResponseWriter | None = None
        self.pending_thread: asyncio.Future[Any] | None = None

    def next_message(self) -> "GrpcRequest":
        """Return a request for the next message of the same stream."""
        request = GrpcRequest(self.path, self.headers, self.peer, self.time_left)
        request.forwarded, request.as_triton = self.forwarded, self.as_triton
        return request


Messages = AsyncIterator[Buffer]
Responses = AsyncIterator[bytes]
UnaryHandler = Callable[[Server, GrpcRequest], bytes | Awaitable[bytes]]
# Takes and returns messages as dictionaries.
MessageHandler = Callable[[Server, Message], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
UnaryCall = Callable[[GrpcRequest], Awaitable[bytes]]  # the method's `unary`, with admission and metrics
StreamHandler = Callable[[Server, GrpcRequest, Messages, UnaryCall], Responses]


class Method(NamedTuple):
    """Method of a service.

    `unary` takes one message, in `request.body`, and returns one; `stream` takes and returns any number, and may call
    `unary` for each.
    """

    name: str
    action: Action
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None


def message_handler(package: str, name: str, handler: MessageHandler) -> UnaryHandler:
    """Return the unary handler of a method whose messages have its name, as `inference.ModelReadyRequest`."""

    async def encode_later(outcome: Awaitable[Mapping[str, Any]]) -> bytes:
        return encode(f"{package}.{name}Response", await outcome)

    def respond(server: Server, request: GrpcRequest) -> bytes | Awaitable[bytes]:
        outcome = handler(server, decode(f"{package}.{name}Request", request.body))
        if isinstance(outcome, Mapping):
            return encode(f"{package}.{name}Response", outcome)
        return encode_later(outcome)

    return respond


class Service(NamedTuple):
    """Service with its full name; `protocol` is the label of its requests in the metrics."""

    name: str
    protocol: str
    methods: tuple[Method, ...]


class GrpcErrorResponse(HttpResponse):
    """Status, message and trailers of a failed call."""

    __slots__ = ("code", "message")

    def __init__(self, error: PredictorError) -> None:
        super().__init__(error.status)
        self.code = error.grpc_status
        self.message = valid_text(error)

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        headers = self.headers or {}
        return tuple((name.lower(), headers[name]) for name in _TRAILER_HEADERS if name in headers)


def grpc_error(error: Exception, request: HttpRequest) -> GrpcErrorResponse:
    """Return the error for the client, as over HTTP: unexpected exceptions are logged and reported as opaque."""
    response = error_response(GrpcErrorResponse, error, request)
    assert isinstance(response, GrpcErrorResponse)
    # The traceback holds the request's memory in a reference cycle, until the garbage collector runs.
    error.__traceback__ = error.__context__ = None
    return response


class DrainableConnection(Protocol):
    """Client connection as the dispatcher and the server need it."""

    @property
    def has_calls(self) -> bool: ...
    def start_drain(self) -> None: ...
    def close(self) -> None: ...


class CallTransport(Protocol):
    """Call as the dispatcher needs it; implemented by GrpcCall."""

    head: CallHead

    @property
    def peer(self) -> str: ...
    def time_left(self) -> float | None: ...
    async def write(self, response: bytes) -> None: ...
    def finish(self) -> None: ...
    def send_error(self, error: GrpcErrorResponse) -> None: ...


class PendingResponse(NamedTuple):
    """Response that must be awaited: exactly one of `run` and `drop` is called."""

    run: Callable[[], Coroutine[Any, Any, bytes | GrpcErrorResponse]]
    drop: Callable[[], None]


class GrpcDispatcher:
    """Method table and connections of the gRPC port. Runs on the event loop."""

    def __init__(
        self,
        server: Server,
        admission: Admission,
        services: Iterable[Service],
        observer: Callable[[], RequestObserver | None],
    ) -> None:
        self._server, self.admission, self.observer = server, admission, observer
        self.codecs = server.codecs
        self.connections: set[DrainableConnection] = set()
        self.closing = False
        self.in_flight = 0
        self._handlers: dict[str, MethodHandler] = {}
        for service in services:
            for method in service.methods:
                path = f"/{service.name}/{method.name}"
                self._handlers[path] = MethodHandler(self, server, path, service.protocol, method)

    def handler(self, path: str) -> "MethodHandler | None":
        """Return the handler of a method, or None (UNIMPLEMENTED)."""
        return self._handlers.get(path)

    def limit_age(self, connection: DrainableConnection) -> asyncio.TimerHandle | None:
        """Drain a connection at the maximum age, and close it after the grace period, if these are set."""
        settings, loop = self.admission.settings.grpc, asyncio.get_running_loop()
        age_s, grace_s = settings.max_connection_age_ms / 1000, settings.max_connection_grace_ms / 1000
        if not age_s:
            return None

        def drain() -> None:
            connection.start_drain()
            if grace_s:
                loop.call_later(grace_s, connection.close)

        return loop.call_later(age_s, drain)

    @property
    def busy(self) -> bool:
        return any(connection.has_calls for connection in self.connections)

    def close(self) -> None:
        """Accept no further calls; streams end between two messages."""
        self.closing = True
        for connection in list(self.connections):
            connection.start_drain()


class MethodHandler:
    """Handler of the calls of one method."""

    def __init__(self, dispatcher: GrpcDispatcher, server: Server, path: str, protocol: str, method: Method) -> None:
        self._dispatcher, self._server, self._admission = dispatcher, server, dispatcher.admission
        self._path, self._protocol, self._method = path, protocol, method
        settings = self._admission.settings
        restricted = RestrictedApis(settings.grpc_restricted_apis, "protocol", GRPC_PREFIX)
        self._restriction = restricted.of(method.action, path)
        self._as_triton = settings.as_triton and path.startswith(TRITON_SERVICE)
        self._forwarding = HeaderForwarding(settings.grpc_header_forward_pattern)
        checks = self._admission.checks_every_request(method.action, protocol)
        self.checks_caller = checks or self._restriction is not None
        self.streams, self.infers = method.stream is not None, method.action is Action.INFER
        self.can_reject_message = method.unary is not None  # an error of one message does not end the stream

    def new_request(self, transport: CallTransport) -> GrpcRequest:
        request = GrpcRequest(self._path, transport.head.headers, transport.peer, transport.time_left)
        request.as_triton = self._as_triton
        if self._forwarding:
            request.forwarded = self._forwarding.forwarded(transport.head.headers.items())
        observer = self._dispatcher.observer()
        if observer is not None:
            observer.attach(request, self._path)
        return request

    def authorize(self, request: GrpcRequest) -> GrpcErrorResponse | None:
        """Return the error if the caller may not call this method."""
        try:
            self._admit(request)
        except PredictorError as error:
            return _error_response(request, error)
        return None

    def _admit(self, request: GrpcRequest) -> None:
        try:
            self._admission.admit(request.headers, request.peer, self._method.action, self._protocol, self._restriction)
        except PredictorError as error:
            self._count(request, error.status)
            raise

    def reject(self, request: GrpcRequest, error: PredictorError, *, counted: bool = False) -> GrpcErrorResponse:
        """Count and log a request that failed before its handler ran, and return its error.

        `counted`: its handler has run and counted it, and only its response is refused.
        """
        if not counted:
            self._count(request, error.status)
        elif self._method.action is Action.INFER:
            self._server.metrics.responses_refused += 1
        response, request.finish = _error_response(request, error), unobserved
        return response

    def respond(self, request: GrpcRequest) -> bytes | GrpcErrorResponse | PendingResponse:
        """Return the response to the message in `request.body`, or a PendingResponse if it must be awaited."""
        try:
            outcome = self._call_unary(request)
        except Exception as error:
            return _error_response(request, error)
        if not isinstance(outcome, bytes):

            def drop() -> None:
                """Record a call that was cancelled before its task started."""
                if asyncio.iscoroutine(outcome):
                    outcome.close()
                self._count(request, _cancel_status(request))
                self.cancelled(request)

            return PendingResponse(lambda: self._run_pending(request, outcome), drop)
        if request.finish is not unobserved:
            request.finish(HttpResponse(200))
        return outcome

    async def _run_pending(self, request: GrpcRequest, outcome: Awaitable[bytes]) -> bytes | GrpcErrorResponse:
        try:
            response = await self._await_response(request, outcome)
        except asyncio.CancelledError:
            self.cancelled(request)
            raise
        except Exception as error:
            return _error_response(request, error)
        request.finish(HttpResponse(200))
        return response

    def cancelled(self, request: GrpcRequest) -> None:
        request.finish(HttpResponse(_cancel_status(request)))

    def _call_unary(self, request: GrpcRequest) -> bytes | Awaitable[bytes]:
        """Call the unary handler within the byte budget; count the request unless its response must be awaited."""
        assert self._method.unary is not None
        try:
            self._admission.check_capacity(len(request.body))
            outcome = self._method.unary(self._server, request)
        except Exception as error:
            self._count(request, error.status if isinstance(error, PredictorError) else 500)
            raise
        if isinstance(outcome, bytes):
            self._count(request, request.status)
        return outcome

    async def _await_response(self, request: GrpcRequest, outcome: Awaitable[bytes]) -> bytes:
        length, status = len(request.body), 500
        self._admission.take(length)
        self._dispatcher.in_flight += 1
        try:
            response = await outcome
            status = request.status
        except PredictorError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = _cancel_status(request)
            raise
        finally:
            self._dispatcher.in_flight -= 1
            if request.pending_thread is None:
                self._admission.release(length)
            else:
                request.pending_thread.add_done_callback(lambda _: self._admission.release(length))
            self._count(request, status)
        return response

    def _count(self, request: GrpcRequest, status: int) -> None:
        if self._method.action is not Action.INFER:
            return
        seconds, served = perf_counter() - request.started, request.served
        if served is None:
            self._server.observe_rejected(self._protocol, request.params, status, seconds)
        else:
            self._server.count_response(served, self._protocol, status, seconds)

    async def stream(self, request: GrpcRequest, messages: Messages, transport: CallTransport) -> None:
        """Run the stream handler until its responses are written."""
        assert self._method.stream is not None
        responses = self._method.stream(self._server, request, messages, self._call_streamed)
        try:
            async with aclosing(cast("AsyncGenerator[bytes, None]", responses)):
                async for response in responses:
                    await transport.write(response)
        except asyncio.CancelledError:
            self.cancelled(request)
            raise
        except Exception as error:
            transport.send_error(_error_response(request, error))
            return
        transport.finish()
        request.finish(HttpResponse(200))

    async def _call_streamed(self, request: GrpcRequest) -> bytes:
        """Respond to one message of a stream; each one counts in the rate limit."""
        self._admit(request)
        if isinstance(request.body, RejectedMessage):
            self._count(request, request.body.error.status)
            raise request.body.error
        outcome = self._call_unary(request)
        return outcome if isinstance(outcome, bytes) else await self._await_response(request, outcome)


def _error_response(request: GrpcRequest, error: Exception) -> GrpcErrorResponse:
    response = grpc_error(error, request)
    request.finish(response)
    return response


def _cancel_status(request: GrpcRequest) -> int:
    """Return 504 if the client's deadline has passed, 499 if the client cancelled."""
    left = request.time_left()
    return 504 if left is not None and left <= 0 else 499
