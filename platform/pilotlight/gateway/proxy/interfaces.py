"""Interfaces between a client's connection, its request and the data plane."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from pilotlight.gateway.proxy.backend import BufferBudget, LiveBackend, PendingRequest
from pilotlight.gateway.proxy.prepare_request import LiveRoute, PreparedRequest, RoutingState
from pilotlight.gateway.proxy.response_observers import ResponseObserver
from pilotlight.gateway.proxy.responses import Admission, PageHandler
from pilotlight.gateway.proxy.upstream import LiveReplica


class ObservedRequest(Protocol):
    """A request as those see it that build its observer."""

    arrived_at: float
    sent_at: float  # 0: nothing sent to a replica yet
    request_id: str
    method: str
    caller: str  # name of the authenticated client; empty: the route has no access rules
    prepared: PreparedRequest
    backend: LiveBackend | None
    usage_added: bool  # the gateway requests the `usage` of a stream, the client does not

    def now(self) -> float: ...


class PlaneView(Protocol):
    """The part of the data plane that client connections and their requests use."""

    clock: Callable[[], float]
    routing: RoutingState
    admission: Admission
    buffer_budget: BufferBudget
    pages: dict[str, PageHandler]
    loopback_pages: frozenset[str]
    clients: "set[Downstream]"
    closing: bool
    idle_s: float

    def submit(self, request: PendingRequest, route: LiveRoute, tag: str, front: bool = False) -> None: ...
    def dispatch(self, request: PendingRequest, front: bool = False) -> None: ...
    def report_unreachable(self, replica: LiveReplica, reason: str) -> None: ...
    def new_request_id(self) -> str: ...
    def add_client(self, client: "Downstream") -> None: ...
    def observe(self, request: "ObservedRequest") -> ResponseObserver | None: ...


class Downstream(Protocol):
    """The client's connection, as its request and the data plane use it."""

    plane: PlaneView
    transport: asyncio.Transport
    close_after: bool  # close the connection once the response is written
    on_body: Callable[[bytes], None] | None  # called with further pieces of the body

    @property
    def request(self) -> object | None: ...  # the ProxiedRequest being read or answered
    @property
    def busy(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def take_buffer(self) -> bytes: ...
    def request_done(self, now: float) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def check_timeouts(self, now: float) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
