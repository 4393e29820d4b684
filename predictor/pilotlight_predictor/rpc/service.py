"""Declaration of gRPC services as tables of methods, and the request that their handlers get."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import HttpRequest, HttpResponse
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server


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
        return GrpcRequest(self.path, self.headers, self.peer, self.time_left)


Messages = AsyncIterator[Buffer]
Responses = AsyncIterator[bytes]
UnaryHandler = Callable[[Server, GrpcRequest], bytes | Awaitable[bytes]]
UnaryCall = Callable[[GrpcRequest], Awaitable[bytes]]  # the method's `unary`, with admission and metrics
StreamHandler = Callable[[Server, GrpcRequest, Messages, UnaryCall], Responses]


class Method(NamedTuple):
    """Method of a service. `unary` takes one message, in `request.body`, and returns one; `stream` takes and returns
    any number, and may call `unary` for each."""

    name: str
    action: Action
    unary: UnaryHandler | None = None
    stream: StreamHandler | None = None


class Service(NamedTuple):
    """Service with its full name; `protocol` is the label of its requests in the metrics."""

    name: str
    protocol: str
    methods: tuple[Method, ...]
