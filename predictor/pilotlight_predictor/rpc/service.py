"""What a gRPC service is made of: rows of methods, as a dialect is of routes. desk.py serves what stands in them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server


def nobody_watches(_: Reply) -> None:
    pass


class Outlet(Protocol):
    """Where a request that has any number of answers writes all but its last, out of the order of the others.

    `turn` is held from the arrival of a message until it is read.
    """

    @property
    def turn(self) -> asyncio.Lock: ...
    def leave_order(self) -> None: ...
    async def write(self, answer: bytes) -> None: ...


class RpcCall(Call):
    """One message of a client. `served` is the version that it asked, once that is known: its metrics are of it.

    `time_left` gives the seconds to the client's deadline, None without one. `status` is what an answer counts as: a
    service whose messages tell of failures sets it. `outlet` is there within a stream, for more answers than one.
    `lasts` is work in a thread that holds the message although the call was cancelled.
    """

    __slots__ = ("lasts", "outlet", "served", "status", "time_left")

    def __init__(self, path: str, headers: Mapping[str, str], peer: str, time_left: Callable[[], float | None]) -> None:
        super().__init__("POST", path, "", headers, b"", peer, nobody_watches, perf_counter())
        self.served: ServedVersion | None = None
        self.time_left = time_left
        self.status = 200
        self.outlet: Outlet | None = None
        self.lasts: asyncio.Future[Any] | None = None

    def another(self) -> "RpcCall":
        """For the next message of the same client on the same stream."""
        return RpcCall(self.path, self.headers, self.peer, self.time_left)


Messages = AsyncIterator[Buffer]
Answers = AsyncIterator[bytes]
Answer = Callable[[Server, RpcCall], bytes | Awaitable[bytes]]
Single = Callable[[RpcCall], Awaitable[bytes]]  # the row's `answer`, through gate and metrics
Stream = Callable[[Server, RpcCall, Messages, Single], Answers]


class Method(NamedTuple):
    """A row. `answer` takes one message, in `call.body`, and gives one. Where there is a `stream` too, that takes and
    gives any number of messages, and may have each of them answered by `answer`."""

    name: str
    action: Action
    answer: Answer | None = None
    stream: Stream | None = None


class Service(NamedTuple):
    """`name` with its package; `protocol` is the label of its inferences in the metrics."""

    name: str
    protocol: str
    methods: tuple[Method, ...]
