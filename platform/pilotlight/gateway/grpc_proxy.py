"""gRPC proxy on a route's own port: routing, queueing, limits and access are those of HTTP requests.

Every method, unary or streaming, is forwarded as a stream of byte messages. A call is retried only if no connection to
its replica could be made, before anything was sent. grpcio cannot use a listening socket of another process, so it
binds by itself: while a gateway restarts, the port refuses connections for a moment.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from pilotlight.contract import HEADER_COLD_START, HEADER_REQUEST_ID
from pilotlight.gateway import addresses
from pilotlight.gateway.addresses import Address, CannotListen
from pilotlight.gateway.gate import Admission, ErrorResponse, RequestRejected
from pilotlight.gateway.grpc_channels import ChannelPool, GrpcChannel
from pilotlight.gateway.grpc_ending import CallStatus
from pilotlight.gateway.grpc_words import (
    GRPC_STATUS,
    forwarded_metadata,
    http_status,
    peer_address,
    request_id,
    to_headers,
)
from pilotlight.gateway.messages import Unreachable
from pilotlight.gateway.plane import DataPlane, Lease, RouteKey
from pilotlight.gateway.table import Route, Table

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 1),
)
PORT_S: Final = 2.0  # for a predecessor to release the port
UNBOUNDED_S: Final = 86400.0

Requests = AsyncIterator[bytes]


class GrpcProxy:
    """All gRPC ports of one gateway."""

    def __init__(self, plane: DataPlane, admission: Admission, on_unreachable: Callable[[Unreachable], None]) -> None:
        self._plane, self._admission, self._on_unreachable = plane, admission, on_unreachable
        self._connections = ChannelPool()
        self._servers: list[GrpcServer] = []

    async def start(self, address: Address, route: Callable[[], RouteKey]) -> "GrpcServer":
        """Listen; `route` is called for each call. Raises CannotListen."""
        try:
            import grpc.aio
        except ImportError:
            raise CannotListen(f"cannot serve gRPC on {address.host_port}: install pilotlight[grpc]") from None
        await _until_free(address)
        server = grpc.aio.server(handlers=(_AnyMethod(self, route),), options=SERVER_OPTIONS)
        try:
            server.add_insecure_port(address.host_port)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address.host_port}: {error}") from error
        await server.start()
        self._servers.append(GrpcServer(server))
        return self._servers[-1]

    def update(self, table: Table) -> None:
        """Apply a table: channels to removed replicas are closed once their calls have ended."""
        self._connections.retain({each.id for route in table.routes for one in route.backends for each in one.replicas})

    async def drain(self, seconds: float) -> None:
        await asyncio.gather(*(server.stop(seconds) for server in self._servers))
        await self._connections.close()

    async def handle(self, method: str, key: RouteKey, requests: Requests, context: Any) -> None:
        """Proxy one call, from its arrival to its status."""
        headers, peer = to_headers(context.invocation_metadata()), peer_address(context.peer())
        route = self._plane.route(key)
        if route is None or route.internal:
            await _abort(context, ErrorResponse(404, "no service has this port"))
            return
        error = self._admission.admit(route, headers, peer)
        if error is not None:
            await _abort(context, error)
            return
        try:
            lease, connection = await self._acquire_replica(route, headers, context)
        except RequestRejected as rejected:
            await _abort(context, rejected.response)
            return
        status = 499  # client closed request, unless it ends otherwise
        try:
            status = await _relay(_ProxiedCall(method, route, lease, peer), connection.channel, requests, context)
        finally:
            self._connections.release(connection)
            lease.release(status)

    async def _acquire_replica(self, route: Route, headers: dict[str, str], context: Any) -> tuple[Lease, GrpcChannel]:
        """Return a slot on a replica and a channel to it; tries other replicas while one cannot be connected to."""
        left = context.time_remaining()
        deadline = time.monotonic() + (route.timeout_s if left is None else left)
        while True:
            lease = await self._plane.acquire(route, None, headers, deadline)
            if not lease.replica.grpc_port:
                lease.release(501)
                raise RequestRejected(ErrorResponse(501, f"{route.namespace}/{route.name} serves no gRPC"))
            try:
                return lease, await self._connections.acquire(lease.replica)
            except ConnectionError as error:
                if lease.fail_unreachable():
                    self._on_unreachable(Unreachable(lease.replica.id, str(error)))
            except BaseException:
                lease.release(499)
                raise


class _ProxiedCall:
    """One call with its replica."""

    def __init__(self, method: str, route: Route, lease: Lease, peer: str) -> None:
        self.method, self.route, self.lease, self.peer = method, route, lease, peer


async def _relay(call: _ProxiedCall, channel: Any, requests: Requests, context: Any) -> int:
    """Relay a call; return the equivalent HTTP status. A disconnect of the client cancels it and the upstream call."""
    remaining = context.time_remaining()
    timeout = call.route.timeout_s if remaining is None else min(remaining, call.route.timeout_s)
    metadata = forwarded_metadata(context.invocation_metadata(), call.peer)
    outgoing = channel.stream_stream(call.method)(requests, timeout=timeout, metadata=metadata)
    status = CallStatus(outgoing)
    try:
        await _relay_messages(outgoing, context, request_id(metadata), call.lease.cold_ms)
        await status.wait()
    finally:
        outgoing.cancel()
    context.set_trailing_metadata(status.trailers)
    context.set_details(status.details)
    context.set_code(status.code)
    return http_status(status.code.name)


async def _relay_messages(outgoing: Any, context: Any, identity: str, cold_ms: int | None) -> None:
    """Relay messages until the call ends; its status is read afterwards."""
    import grpc.aio

    try:
        first = tuple(await outgoing.initial_metadata() or ())
        if not request_id(first):
            first = (*first, (HEADER_REQUEST_ID, identity))
        if cold_ms is not None:
            first = (*first, (HEADER_COLD_START, str(cold_ms)))
        await context.send_initial_metadata(first)
        while (message := await outgoing.read()) is not grpc.aio.EOF:
            await context.write(message)
    except grpc.aio.AioRpcError:
        return


class _AnyMethod:
    """Generic handler for grpcio: the same for every method."""

    def __init__(self, proxy: GrpcProxy, route: Callable[[], RouteKey]) -> None:
        self._proxy, self._route = proxy, route

    def service(self, details: Any) -> Any:
        import grpc

        async def handle(requests: Requests, context: Any) -> None:
            await self._proxy.handle(details.method, self._route(), requests, context)

        return grpc.stream_stream_rpc_method_handler(handle)


class GrpcServer:
    """One port."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._stopping: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Accept no new calls; running ones continue."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self.stop(UNBOUNDED_S))

    async def stop(self, seconds: float) -> None:
        await self._server.stop(seconds)


async def _abort(context: Any, error: ErrorResponse) -> None:
    import grpc

    code = grpc.StatusCode[GRPC_STATUS.get(error.status, "UNKNOWN")]
    trailers = tuple((name.lower(), value) for name, value in error.headers.items())
    await context.abort(code, error.message, trailers)


async def _until_free(address: Address) -> None:
    """Wait until the port is free: with SO_REUSEPORT grpcio would share it with other processes of this user."""
    until = time.monotonic() + PORT_S
    while True:
        try:
            addresses.bind(address).close()
        except CannotListen:
            if time.monotonic() >= until:
                raise
            await asyncio.sleep(0.02)
        else:
            return
