"""gRPC proxy on a route's own port: routing, queueing, limits and access are those of HTTP requests.

Every method, unary or streaming, is forwarded as a stream of byte messages. A call is retried only if no connection to
its replica could be made, before anything was sent.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pilotlight.contract import HEADER_COLD_START, HEADER_REQUEST_ID, HEADER_REVISION
from pilotlight.gateway import listeners
from pilotlight.gateway.control_link import Unreachable
from pilotlight.gateway.listeners import Address, CannotListen
from pilotlight.gateway.proxy.data_plane import DataPlane, Lease, RouteKey
from pilotlight.gateway.proxy.responses import UNCOUNTED, Admission, ErrorResponse, RequestRejected
from pilotlight.gateway.routing_table import Replica, Route, Table
from pilotlight.wire import unix_socket
from pilotlight.wire.client_address import is_local_name
from pilotlight.wire.environments.install_command import install_command

if TYPE_CHECKING:
    from pilotlight.gateway.tls import GatewayTls

CONNECT_S: Final = 5.0
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no shared subchannels: a port may pass to another replica
)
# grpcio cannot use a listening socket of another process: while a gateway restarts, the port refuses connections.
SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 1),
)
UNBOUNDED_S: Final = 86400.0
CANNOT_WRITE: Final = "Internal error from Core"  # details of a status that grpcio makes up
SETTLE_S: Final = 1.0  # from a status that grpcio made up to the replica's own, which may never come
FORWARDED_FOR: Final = "x-forwarded-for"
# Written by the library for the upstream call.
_HOP_BY_HOP: Final = frozenset(
    {"user-agent", "te", "content-type", "content-length", "host", "connection", "transfer-encoding"}
)
GRPC_STATUS: Final = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
# Other codes are client errors (400).
HTTP_STATUS: Final = {
    "OK": 200, "CANCELLED": 499, "UNKNOWN": 500, "INTERNAL": 500, "DATA_LOSS": 500, "UNIMPLEMENTED": 404,
    "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429, "NOT_FOUND": 404,
}  # fmt: skip

Pair = tuple[str, str | bytes]
Requests = AsyncIterator[bytes]


class GrpcChannel:
    """`users` is the number of calls that use it."""

    def __init__(self, replica: Replica) -> None:
        import grpc.aio

        self.place = Address(replica.host, replica.grpc_port).host_port
        self._path = ExitStack()  # the address holds as long as the channel, which may reconnect
        if unix_socket.is_unix(replica.host):
            path = unix_socket.socket_path(replica.host, replica.grpc_port)
            try:
                self.place = f"unix:{self._path.enter_context(unix_socket.unix_address(path))}"
            except OSError as error:
                raise ConnectionError(f"no connection to {path}: {error.strerror}") from None
        self.channel = grpc.aio.insecure_channel(self.place, options=CHANNEL_OPTIONS)
        self.users = 0
        self.pooled = True

    async def close(self) -> None:
        await self.channel.close()
        self._path.close()

    async def ready(self) -> None:
        """Wait for the connection. Raises ConnectionError; nothing of a call has been sent by then."""
        from grpc import ChannelConnectivity as State

        state = self.channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(CONNECT_S):
                while state is not State.READY:
                    if state in (State.TRANSIENT_FAILURE, State.SHUTDOWN):
                        raise ConnectionError(f"no connection to {self.place}")
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise ConnectionError(f"no connection to {self.place} within {CONNECT_S:g} s") from None


class ChannelPool:
    """Channels by replica: opened by the first call, closed when the replica is gone."""

    def __init__(self) -> None:
        self._open: dict[str, GrpcChannel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(self, replica: Replica) -> GrpcChannel:
        """Return a connected channel, in use until `release`. Raises ConnectionError."""
        channel = self._open.get(replica.id)
        if channel is None:
            channel = self._open[replica.id] = GrpcChannel(replica)
        channel.users += 1
        try:
            await channel.ready()
        except BaseException as error:
            if isinstance(error, ConnectionError):
                self._discard(replica.id, channel)
            self.release(channel)
            raise
        return channel

    def release(self, connection: GrpcChannel) -> None:
        connection.users -= 1
        self._close_if_idle(connection)

    def retain(self, replicas: set[str]) -> None:
        """Discard the channels of all other replicas."""
        for removed in self._open.keys() - replicas:
            self._discard(removed, self._open[removed])

    async def close(self) -> None:
        self.retain(set())
        await asyncio.gather(*self._closing)

    def _discard(self, replica: str, connection: GrpcChannel) -> None:
        """Remove a channel from the pool; it is closed after its last call."""
        if self._open.get(replica) is connection:
            del self._open[replica]
        connection.pooled = False
        self._close_if_idle(connection)

    def _close_if_idle(self, connection: GrpcChannel) -> None:
        if not connection.pooled and not connection.users:
            closing: Any = asyncio.get_running_loop().create_task(connection.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


class CallStatus:
    """Status of a call as the replica sent it: `code`, `details` and `trailers` are set once `wait` has returned.

    A replica may end a call before the client has sent everything: an unknown method, or a stream that it stops
    reading. Further writes fail, and grpcio reports the failed write as the call's status, before or instead of the
    received one. So every reported status is examined, and the replica's own is used.
    """

    def __init__(self, call: Any) -> None:
        self.code: Any = None
        self.details = ""
        self.trailers: tuple[tuple[str, str | bytes], ...] = ()
        self._received, self._settled = asyncio.Event(), asyncio.Event()
        call.add_done_callback(self._on_status)

    async def wait(self) -> None:
        await self._received.wait()
        try:
            await asyncio.wait_for(self._settled.wait(), SETTLE_S)
        except TimeoutError:
            return

    def _on_status(self, call: Any) -> None:
        """Called for each reported status; ignored after the replica's own."""
        if self._settled.is_set():
            return
        self.code, self.details = _completed_result(call.code()), _completed_result(call.details()) or ""
        self.trailers = tuple(_completed_result(call.trailing_metadata()) or ())
        self._received.set()
        if self.details != CANNOT_WRITE:
            self._settled.set()


class GrpcProxy:
    """All gRPC ports of one gateway."""

    def __init__(
        self, plane: DataPlane, admission: Admission, on_unreachable: Callable[[Unreachable], None],
        tls: "GatewayTls | None" = None, audit: Callable[..., None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self._plane, self._admission, self._on_unreachable, self._tls = plane, admission, on_unreachable, tls
        self._audit = audit  # called with route, client, headers, method, status and the backend that served a call
        self._connections = ChannelPool()
        self._servers: list[GrpcServer] = []

    async def start(self, address: Address, route: Callable[[], RouteKey]) -> "GrpcServer":
        """Listen, with a certificate on its address; `route` is called for each call. Raises CannotListen.

        Does not wait for a port in use: all messages of the control process would wait behind it.
        """
        try:
            import grpc.aio
        except ImportError:
            raise CannotListen(f"cannot serve gRPC on {address.host_port}: {install_command('grpc')}") from None
        address = self._tls.grpc_address(address) if self._tls is not None else address
        for open_server in self._servers:
            if open_server.address == address and not open_server.closing:
                return open_server
        # With SO_REUSEPORT grpcio would share a port in use with other processes of this user.
        listeners.bind(address).close()
        handler = _AnyMethod(self, route, loopback=is_local_name(address.host))
        server = grpc.aio.server(handlers=(handler,), options=SERVER_OPTIONS)
        try:
            if self._tls is not None:
                server.add_secure_port(address.host_port, self._tls.grpc_credentials())
            else:
                server.add_insecure_port(address.host_port)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {address.host_port}: {error}") from error
        await server.start()
        self._servers.append(GrpcServer(server, address))
        return self._servers[-1]

    def update(self, table: Table) -> None:
        """Apply a table: channels to removed replicas are closed once their calls have ended."""
        self._connections.retain({each.id for route in table.routes for one in route.backends for each in one.replicas})

    async def drain(self, seconds: float) -> None:
        await asyncio.gather(*(server.stop(seconds) for server in self._servers))
        await self._connections.close()

    async def handle(self, method: str, key: RouteKey, requests: Requests, context: Any, loopback: bool) -> None:
        """Proxy one call, from arrival to status. `loopback`: refuse web pages of other sites, by their Origin."""
        headers, peer = to_headers(context.invocation_metadata()), peer_address(context.peer())
        # grpcio hides the authority. No page gets here by a foreign name: browsers speak HTTP/2 over TLS alone.
        if loopback and (refusal := self._plane.routing.matcher.foreign_site(headers)):
            await _abort(context, ErrorResponse(403, refusal))
            return
        route = self._plane.route(key)
        if route is None or route.internal:
            await _abort(context, ErrorResponse(404, "no service uses this port"))
            return
        client = self._admission.authenticate(route, headers) if route.audit else None
        error = self._admission.admit(route, headers, peer, client) or (UNCOUNTED if route.quota else None)
        if error is not None:
            self._audit(route, client, headers, method, error.status)
            await _abort(context, error)
            return
        try:
            lease, connection = await self._acquire_replica(route, headers, context)
        except RequestRejected as rejected:
            self._audit(route, client, headers, method, rejected.response.status)
            await _abort(context, rejected.response)
            return
        status = 499  # client closed request, unless it ends otherwise
        try:
            metadata = forwarded_metadata(context.invocation_metadata(), peer)
            left = context.time_remaining()
            timeout = route.timeout_s if left is None else min(left, route.timeout_s)
            outgoing = connection.channel.stream_stream(method)(requests, timeout=timeout, metadata=metadata)
            status = await _relay(outgoing, context, request_id(metadata), lease)
        finally:
            self._audit(route, client, headers, method, status, lease.config)
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
                raise RequestRejected(ErrorResponse(501, f"{route.namespace}/{route.name} does not serve gRPC"))
            try:
                return lease, await self._connections.acquire(lease.replica)
            except ConnectionError as error:
                if lease.fail_unreachable():
                    self._on_unreachable(Unreachable(lease.replica.id, str(error)))
            except BaseException:
                lease.release(499)
                raise


async def _relay(outgoing: Any, context: Any, identity: str, lease: Lease) -> int:
    """Relay a call; return the equivalent HTTP status. A disconnect of the client cancels it and the upstream call."""
    status = CallStatus(outgoing)
    try:
        await _relay_messages(outgoing, context, identity, lease)
        await status.wait()
    finally:
        outgoing.cancel()
    context.set_trailing_metadata(status.trailers)
    context.set_details(status.details)
    context.set_code(status.code)
    return HTTP_STATUS.get(status.code.name, 400)


async def _relay_messages(outgoing: Any, context: Any, identity: str, lease: Lease) -> None:
    """Relay messages until the call ends; its status is read afterwards."""
    import grpc.aio

    try:
        first = tuple(await outgoing.initial_metadata() or ())
        if not request_id(first):
            first = (*first, (HEADER_REQUEST_ID, identity))
        if lease.cold_ms is not None:
            first = (*first, (HEADER_COLD_START, str(lease.cold_ms)))
        if lease.split:
            first = (*first, (HEADER_REVISION, lease.revision))
        await context.send_initial_metadata(first)
        while (message := await outgoing.read()) is not grpc.aio.EOF:
            await context.write(message)
    except grpc.aio.AioRpcError:
        return


class _AnyMethod:
    """Generic handler for grpcio: the same for every method."""

    def __init__(self, proxy: GrpcProxy, route: Callable[[], RouteKey], *, loopback: bool) -> None:
        self._proxy, self._route, self._loopback = proxy, route, loopback

    def service(self, details: Any) -> Any:
        import grpc

        async def handle(requests: Requests, context: Any) -> None:
            await self._proxy.handle(details.method, self._route(), requests, context, self._loopback)

        return grpc.stream_stream_rpc_method_handler(handle)


class GrpcServer:
    def __init__(self, server: Any, address: Address) -> None:
        self._server, self.address = server, address
        self._stopping: asyncio.Task[None] | None = None

    @property
    def closing(self) -> bool:
        return self._stopping is not None

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


def _completed_result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not wait: the status of a finished call."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("the status of a call that is done must be known")


def to_headers(metadata: Iterable[Pair] | None) -> dict[str, str]:
    """Return the metadata as headers, for admission and routing; repeated ones are joined."""
    headers: dict[str, str] = {}
    for name, value in metadata or ():
        if isinstance(value, str):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def forwarded_metadata(metadata: Iterable[Pair] | None, peer: str) -> tuple[Pair, ...]:
    """Return the upstream metadata: the client's, its address, and a request id."""
    pairs = [
        (name, value) for name, value in metadata or () if name not in _HOP_BY_HOP and not name.startswith("grpc-")
    ]
    before = [str(value) for name, value in pairs if name == FORWARDED_FOR]
    forwarded: list[Pair] = [pair for pair in pairs if pair[0] != FORWARDED_FOR]
    forwarded.append((FORWARDED_FOR, ", ".join((*before, peer))))
    if not request_id(forwarded):
        forwarded.append((HEADER_REQUEST_ID, str(uuid.uuid4())))
    return tuple(forwarded)


def request_id(metadata: Sequence[Pair]) -> str:
    return next((str(value) for name, value in metadata if name == HEADER_REQUEST_ID), "")


def peer_address(text: str) -> str:
    """`ipv6:%5B::1%5D:41000` → `::1`."""
    kind, _, rest = unquote(text).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else text
