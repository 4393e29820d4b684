"""The gRPC port: reserved at start, served once the services are imported, drained at the end.

A bound socket that does not listen reserves the port: a conflict is found at once, and the number of port 0 is known.
Until the first load ends, or takes long, connections are refused and clients retry; then they wait for the services.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from pilotlight.contract import GRPC_PORT
from pilotlight.wire import unix_socket
from pilotlight_predictor.config import ServerSettings, Settings
from pilotlight_predictor.core.threads import in_thread_under_load
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.frontends.admission import Admission
from pilotlight_predictor.frontends.http.server import BACKLOG, open_socket
from pilotlight_predictor.frontends.tasks_and_timeouts import wait_for_event
from pilotlight_predictor.observability.logs import log
from pilotlight_predictor.server.handler_context import Server

if TYPE_CHECKING:
    from ssl import SSLContext

    from pilotlight_predictor.frontends.grpc.dispatcher import GrpcDispatcher, Service
    from pilotlight_predictor.frontends.http.access_log import RequestObserver

POLL_S: Final = 0.01
MAX_MESSAGE: Final = (1 << 31) - 1


class ReservedPort(NamedTuple):
    host: str
    port: int
    bound_socket: socket.socket

    def listening_socket(self) -> socket.socket:
        if self.bound_socket.family == socket.AF_UNIX:
            return self.bound_socket
        # Connections in TIME_WAIT must not block the next server. Not set earlier: two servers could then both bind.
        self.bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit keepalive, which finds peers that died silently.
        self.bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self.bound_socket


def reserve_port(settings: ServerSettings, inherited: socket.socket | None = None) -> ReservedPort | None:
    """Bind the gRPC port; None if gRPC is off or the default port is taken. Raise LoadFailed if another one is.

    `inherited`: the unix socket that all workers accept from.
    """
    port, host = settings.grpc_port, settings.grpc_host or settings.host
    several = (settings.fronts or settings.workers) > 1
    if port < 0:
        return None
    if port == 0 and several:
        log("setting", "gRPC is off: several processes need a fixed --grpc-port", level="WARNING")
        return None
    if inherited is not None:
        return ReservedPort(host, port, inherited)
    unix = unix_socket.is_unix(host)
    try:
        path = unix_socket.socket_path(host, port)
        bound_socket = unix_socket.listen(path, BACKLOG) if unix else _reserve(host, port, shared=several)
    except OSError as error:
        message = f"{host}:{port}: {error.strerror}; choose another with --grpc-port, or -1 for none"
        if port != GRPC_PORT:
            raise LoadFailed(f"cannot listen on {message}") from None
        log("setting", f"gRPC is off: cannot listen on {message}", level="WARNING")
        return None
    return ReservedPort(host, port if unix else bound_socket.getsockname()[1], bound_socket)


def _reserve(host: str, port: int, *, shared: bool) -> socket.socket:
    """Bind the port, `shared` between workers or not."""
    if port and not shared:
        open_socket(host, port, socket.SO_REUSEADDR).close()  # fails if others share the port with SO_REUSEPORT
    try:
        return open_socket(host, port, socket.SO_REUSEPORT)
    except OSError:
        # Connections in TIME_WAIT of a program without SO_REUSEPORT block that option only. Then two servers may
        # reserve the port, and one of them fails to listen.
        return open_socket(host, port, socket.SO_REUSEADDR, *([socket.SO_REUSEPORT] if shared else []))


class GrpcServer:
    """Listener on the reserved gRPC port."""

    def __init__(self, port: ReservedPort, settings: Settings) -> None:
        self._port, self._settings = port, settings
        self.tls: SSLContext | None = None
        self._listener: asyncio.Server | None = None
        self._dispatcher: GrpcDispatcher | None = None

    def accept_into_backlog(self) -> None:
        """Accept connections while the services are being imported: a client may call as soon as HTTP is ready."""
        with suppress(OSError):  # start() reports it
            self._port.listening_socket().listen(BACKLOG)

    async def start(
        self,
        server: Server,
        admission: Admission,
        observer: "Callable[[], RequestObserver | None]",
        fan_out: "Callable[[tuple[Service, ...]], tuple[Service, ...]] | None" = None,
    ) -> None:
        """Listen; `fan_out` replaces methods of the services where there are several workers."""
        services = await in_thread_under_load(import_services)
        from pilotlight_predictor.frontends.grpc.connection import GrpcConnection
        from pilotlight_predictor.frontends.grpc.dispatcher import GrpcDispatcher

        services = fan_out(services) if fan_out is not None else services
        dispatcher = self._dispatcher = GrpcDispatcher(server, admission, services, observer)
        # As over HTTP. A message beyond the budget of bytes in flight could never be served.
        max_message = min(admission.max_bytes(), self._settings.server.max_bytes_in_flight, MAX_MESSAGE)
        loop, listener = asyncio.get_running_loop(), self._port.listening_socket()
        create_server = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
        self._listener = await create_server(
            lambda: GrpcConnection(dispatcher, max_message), sock=listener, backlog=BACKLOG, ssl=self.tls
        )
        host, port = self._port.host, self._port.port
        log("grpc.listening", f"{host}:{port}", grpc_port=port, host=host)

    def in_flight(self) -> int:
        return 0 if self._dispatcher is None else self._dispatcher.in_flight

    async def drain(self, delay_s: float, timeout_s: float, abort: asyncio.Event) -> bool:
        """Accept calls for `delay_s`, then wait for those in flight; False if `timeout_s` or `abort` ended it."""
        if self._dispatcher is None or self._listener is None:
            return True
        await wait_for_event(abort, delay_s)
        self._listener.close()
        self._dispatcher.close()
        end = monotonic() + timeout_s
        while self._dispatcher.connections and monotonic() < end and not abort.is_set():
            await wait_for_event(abort, POLL_S)
        finished = not self._dispatcher.busy
        for connection in list(self._dispatcher.connections):
            connection.close()
        return finished


def import_services() -> "tuple[Service, ...]":
    """Import the services; takes 20 ms, so it runs in a thread."""
    from pilotlight_predictor.frontends.grpc import connection as grpc_connection  # noqa: F401
    from pilotlight_predictor.frontends.grpc import services

    return services()
