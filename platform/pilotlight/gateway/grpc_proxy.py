"""gRPC on a route's own port, proxied call by call: choice, holding, limits and access are those of HTTP requests.

Every method, unary or streaming, is passed on as a stream of messages in bytes. A call is sent elsewhere only while no
connection to its replica came about, which is before any of it was sent. grpcio takes no listening socket from another
process, so it binds by itself: while a gateway restarts, this port refuses connections for a moment.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from pilotlight.contract import HEADER_COLD_START, HEADER_REQUEST_ID
from pilotlight.gateway import addresses
from pilotlight.gateway.addresses import Address, CannotListen
from pilotlight.gateway.gate import Gate, Refusal, Refused
from pilotlight.gateway.grpc_channels import Connection, Connections
from pilotlight.gateway.grpc_ending import Ending
from pilotlight.gateway.grpc_words import GRPC_STATUS, forwarded, headers_of, http_status, peer_of, request_id
from pilotlight.gateway.messages import Unreachable
from pilotlight.gateway.plane import Key, Lease, Plane
from pilotlight.gateway.table import Route, Table

OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 1),
)
PORT_S: Final = 2.0  # for a predecessor to let go of the port
AS_LONG_AS_IT_TAKES_S: Final = 86400.0

Requests = AsyncIterator[bytes]


class GrpcProxy:
    """All gRPC ports of one gateway."""

    def __init__(self, plane: Plane, gate: Gate, on_unreachable: Callable[[Unreachable], None]) -> None:
        self._plane, self._gate, self._on_unreachable = plane, gate, on_unreachable
        self._connections = Connections()
        self._servers: list[GrpcServer] = []

    async def start(self, address: Address, route: Callable[[], Key]) -> "GrpcServer":
        """`route` is asked at each call. Raises CannotListen."""
        try:
            import grpc.aio
        except ImportError:
            raise CannotListen(f"cannot serve gRPC on {address.place}: install pilotlight[grpc]") from None
        await _until_free(address)
        server = grpc.aio.server(handlers=(_AnyMethod(self, route),), options=OPTIONS)
        try:
            server.add_insecure_port(address.place)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address.place}: {error}") from error
        await server.start()
        self._servers.append(GrpcServer(server))
        return self._servers[-1]

    def follow(self, table: Table) -> None:
        """Connections to replicas that are gone are closed once their calls have ended."""
        self._connections.keep({each.id for route in table.routes for one in route.backends for each in one.replicas})

    async def drain(self, seconds: float) -> None:
        await asyncio.gather(*(server.stop(seconds) for server in self._servers))
        await self._connections.close()

    async def handle(self, method: str, key: Key, requests: Requests, context: Any) -> None:
        """One call, from its arrival to its status."""
        headers, peer = headers_of(context.invocation_metadata()), peer_of(context.peer())
        route = self._plane.route(key)
        if route is None or route.internal:
            await _abort(context, Refusal(404, "no service has this port"))
            return
        refusal = self._gate.admit(route, headers, peer)
        if refusal is not None:
            await _abort(context, refusal)
            return
        try:
            lease, connection = await self._reach(route, headers, context)
        except Refused as error:
            await _abort(context, error.refusal)
            return
        status = 499  # unless told otherwise, the client has left
        try:
            status = await _relay(_Call(method, route, lease, peer), connection.channel, requests, context)
        finally:
            self._connections.put(connection)
            lease.release(status)

    async def _reach(self, route: Route, headers: dict[str, str], context: Any) -> tuple[Lease, Connection]:
        """A place on a replica and a connection to it that stands; who cannot be reached is left for another."""
        left = context.time_remaining()
        deadline = time.monotonic() + (route.timeout_s if left is None else left)
        while True:
            lease = await self._plane.acquire(route, None, headers, deadline)
            if not lease.replica.grpc_port:
                lease.release(501)
                raise Refused(Refusal(501, f"{route.namespace}/{route.name} serves no gRPC"))
            try:
                return lease, await self._connections.get(lease.replica)
            except ConnectionError as error:
                if lease.unreachable():
                    self._on_unreachable(Unreachable(lease.replica.id, str(error)))
            except BaseException:
                lease.release(499)
                raise


class _Call:
    """One call that has its replica."""

    def __init__(self, method: str, route: Route, lease: Lease, peer: str) -> None:
        self.method, self.route, self.lease, self.peer = method, route, lease, peer


async def _relay(call: _Call, channel: Any, requests: Requests, context: Any) -> int:
    """The HTTP status that means the same. When the client leaves this is cancelled, and the replica's call with it."""
    remaining = context.time_remaining()
    timeout = call.route.timeout_s if remaining is None else min(remaining, call.route.timeout_s)
    metadata = forwarded(context.invocation_metadata(), call.peer)
    outgoing = channel.stream_stream(call.method)(requests, timeout=timeout, metadata=metadata)
    ending = Ending(outgoing)
    try:
        await _pass_messages(outgoing, context, request_id(metadata), call.lease.cold_ms)
        await ending.come()
    finally:
        outgoing.cancel()
    context.set_trailing_metadata(ending.trailers)
    context.set_details(ending.details)
    context.set_code(ending.code)
    return http_status(ending.code.name)


async def _pass_messages(outgoing: Any, context: Any, identity: str, cold_ms: int | None) -> None:
    """As they come. A call that fails ends them; its status is read afterwards."""
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
    """What grpcio asks for the handler of a method: the same for all of them."""

    def __init__(self, proxy: GrpcProxy, route: Callable[[], Key]) -> None:
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
        """Takes no further call; those that run go on."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self.stop(AS_LONG_AS_IT_TAKES_S))

    async def stop(self, seconds: float) -> None:
        await self._server.stop(seconds)


async def _abort(context: Any, refusal: Refusal) -> None:
    import grpc

    code = grpc.StatusCode[GRPC_STATUS.get(refusal.status, "UNKNOWN")]
    trailers = tuple((name.lower(), value) for name, value in refusal.headers.items())
    await context.abort(code, refusal.message, trailers)


async def _until_free(address: Address) -> None:
    """grpcio would share the port with any other process of this user that does the same: it must be ours alone."""
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
