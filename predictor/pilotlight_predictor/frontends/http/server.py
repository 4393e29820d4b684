"""HTTP server: listen, start connections in the fast protocol, switch them to aiohttp on demand, drain."""

import asyncio
import socket
import struct
from array import array
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pilotlight.wire import unix_socket
from pilotlight.wire.http1 import PlainRequestHead
from pilotlight_predictor.core.threads import in_thread_under_load
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.http.fast_protocol import FastHttpProtocol
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.tasks_and_timeouts import SCARCE_S, SLOW_S, spawn, wait_for_event

if TYPE_CHECKING:
    from ssl import SSLContext

    from pilotlight_predictor.frontends.http.aiohttp_server import AiohttpServer
    from pilotlight_predictor.frontends.http.router import Dispatcher

BACKLOG: Final = 4096
NEW_CONNECTION_S: Final = 0.5  # from accept to the first request
SETTLE_S: Final = 0.06  # for requests that were sent before clients could see that the server is not ready
BOOT_BODY: Final = 1 << 20  # bytes of a body that a booting server reads to reject the request
HANDSHAKE_S: Final = 0.005  # duration of a TCP handshake within a cluster
_ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER of Linux, which Python's socket module lacks
_FLAGS_BYTE: Final = 13  # offset in a TCP header
_SYN: Final = 0x02
# Classic BPF (code, jump if true, jump if false, operand): load the flags; with SYN accept 0 bytes, else all.
_DROP_SYN: Final = ((0x30, 0, 0, _FLAGS_BYTE), (0x45, 0, 1, _SYN), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


class HttpServer:
    """HTTP server of one port. Until `open` sets the dispatcher it responds that it is alive and not ready."""

    def __init__(self, boot_response: Callable[[HttpRequest], HttpResponse], tls: "SSLContext | None" = None) -> None:
        self._tls = tls
        self.connections: set[FastHttpProtocol] = set()
        self.last_active: FastHttpProtocol | None = None
        self.closing = False
        self.reserve: Callable[[int], int | None] = lambda length: 0 if length <= BOOT_BODY else None
        self.release: Callable[[int], None] = lambda _: None
        self.serve: Callable[[HttpRequest, Any], None] = lambda request, _: request.finish(boot_response(request))
        self._dispatcher: Dispatcher | None = None
        self._aiohttp: AiohttpServer | None = None
        self._aiohttp_task: asyncio.Task[None] | None = None
        self._listeners: dict[socket.socket, asyncio.Server] = {}
        self.others_accept = False  # whether other processes accept from the same sockets
        self._sweeper: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()

    async def listen(self, listener: socket.socket) -> None:
        if listener in self._listeners or self.closing:
            return
        loop = asyncio.get_running_loop()
        # The server gets a duplicate: closing that leaves this one open to accept the rest of the backlog.
        create_server = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
        self._listeners[listener] = await create_server(
            lambda: FastHttpProtocol(self), sock=listener.dup(), backlog=BACKLOG, ssl=self._tls
        )
        self._sweeper = self._sweeper or loop.create_task(self._sweep())

    def stop_accepting(self, listener: socket.socket) -> None:
        """Stop accepting from a socket; other processes accept its backlog."""
        server = self._listeners.pop(listener, None)
        if server is not None:
            server.close()

    def open(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self.reserve, self.release = dispatcher.admission.reserve, dispatcher.admission.release
        self.serve = dispatcher.serve
        self._opened.set()
        for connection in self.connections:
            connection.reset_route()

    def match(self, method: str, path: str) -> Any | None:
        if self._dispatcher is None:
            return self  # any plain request is answered by the booting server
        try:
            match = self._dispatcher.match(method, path)
        except PredictorError:
            return None
        return match if match.route.hot else None

    def admits(self, head: PlainRequestHead, peer: str, match: Any) -> bool:
        if match is self or self._dispatcher is None:
            return True
        try:
            admission, protocol = self._dispatcher.admission, match.protocol.name
            admission.check_size(head.length, protocol)
            admission.check_site(head.headers)
            admission.admit(head.headers, peer, match.route.action, protocol, match.restriction)
        except PredictorError:
            return False
        return True

    def refuse(self, request: HttpRequest, match: Any, length: int, *, counted: bool) -> tuple[HttpResponse, int]:
        assert self._dispatcher is not None
        error = self._dispatcher.admission.over_budget(length)
        response = self._dispatcher.reject(request, error, match if match is not self else None, counted=counted)
        assert isinstance(response.body, list)
        return response, sum(map(len, response.body))

    def recheck(self, match: Any) -> bool:
        if match is self or self._dispatcher is None:
            return False
        return self._dispatcher.admission.checks_every_request(match.route.action, match.protocol.name)

    def switch_to_aiohttp(self, connection: FastHttpProtocol) -> None:
        """Switch now, or once aiohttp is imported, which takes 0.3 s and is not part of the cold start."""
        if self._aiohttp is not None:
            connection.take_over(self._aiohttp.handler(connection.head_since))
            return
        connection.pause()
        spawn(self._switch_when_imported(connection))

    async def _switch_when_imported(self, connection: FastHttpProtocol) -> None:
        try:
            await self.import_aiohttp()
            assert self._aiohttp is not None
            connection.take_over(self._aiohttp.handler(connection.head_since))
        except BaseException:
            connection.close()
            raise

    async def import_aiohttp(self) -> None:
        """Import aiohttp in a thread and create its server, after `open`."""
        await self._opened.wait()
        if self._aiohttp_task is None:
            self._aiohttp_task = asyncio.get_running_loop().create_task(self._start_aiohttp())
        await self._aiohttp_task

    async def _start_aiohttp(self) -> None:
        module = await in_thread_under_load(lambda: import_module("pilotlight_predictor.frontends.http.aiohttp_server"))
        self._aiohttp = module.AiohttpServer(self._dispatcher, self)

    async def _sweep(self) -> None:
        """Close idle and slow connections periodically."""
        while True:
            await asyncio.sleep(SCARCE_S)
            now, slow_s = monotonic(), self._dispatcher.admission.slow_s if self._dispatcher is not None else SLOW_S
            for connection in list(self.connections):
                connection.close_if_overdue(now, slow_s)
            if self._aiohttp is not None:
                self._aiohttp.close_overdue(now, slow_s)

    def in_flight(self) -> int:
        """Return the number of requests that the drain waits for. None while booting: those are answered immediately,
        or wait for aiohttp in vain."""
        if self._dispatcher is None:
            return 0
        waiting = sum(1 for connection in self.connections if not connection.idle)
        return waiting + (self._aiohttp.in_flight if self._aiohttp else 0)

    def _has_new_connections(self) -> bool:
        """Whether an accepted connection has not had the time to send its request."""
        now = monotonic()
        return any(
            connection.is_new and now - connection.busy_since < NEW_CONNECTION_S for connection in self.connections
        )

    def _close_idle(self) -> bool:
        """Close all idle connections but those whose socket has a request to read. Return whether there are none."""
        return not sum(not connection.close_if_read() for connection in list(self.connections))

    async def drain(self, delay_s: float, timeout_s: float, abort: asyncio.Event | None = None) -> bool:
        """Stop accepting after the delay and wait for requests in flight. Return False if the timeout ended the wait.

        `abort` ends the wait immediately.
        """
        self.closing = True
        abort = abort or asyncio.Event()
        await wait_for_event(abort, delay_s + SETTLE_S)
        await self._stop_listening()
        end = monotonic() + timeout_s
        await wait_for_event(abort, 0.01)  # connections accepted last are created in the next iterations of the loop
        while (self.in_flight() or self._has_new_connections() or not self._close_idle()) and monotonic() < end:
            await wait_for_event(abort, 0.01)
            if abort.is_set():
                break
        finished = not self.in_flight()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.close()
        if self._aiohttp is not None:
            await self._aiohttp.close(0.0 if abort.is_set() else max(0.0, end - monotonic()))
        return finished

    async def _stop_listening(self) -> None:
        """Accept all established connections, then close the listeners.

        Closing a listener resets connections that are established but not accepted yet, and under load there always
        are some. So new SYN packets are dropped first: a client retransmits its SYN a second later and is then
        refused, which it can distinguish from a lost request.
        """
        if self._aiohttp is not None:
            self._aiohttp.close_websockets()
        if self.others_accept:
            for listener in list(self._listeners):
                self.stop_accepting(listener)
            return
        for listener in self._listeners:
            drop_new_connections(listener)
        await asyncio.sleep(HANDSHAKE_S)
        for listener, server in self._listeners.items():
            server.close()
            for connection in accept_all(listener):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: FastHttpProtocol(self), connection, ssl=self._tls
                )


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a listening socket: from here on connections wait in its backlog instead of being refused.

    `shared` sets SO_REUSEPORT, with which the kernel spreads connections over several sockets of the port.
    Raise OSError with the address and the options that change it.
    """
    if unix_socket.is_unix(host):
        return bind_unix(host, port)
    options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT) if shared else (socket.SO_REUSEADDR,)
    try:
        return open_socket(host, port, *options, backlog=BACKLOG)
    except OSError as error:
        reason = f"{error.strerror}; choose another with --http-port, --metrics-port or --http-address"
        raise OSError(f"{host}:{port}: {reason}") from None


def open_socket(host: str, port: int, *options: int, backlog: int = 0) -> socket.socket:
    """Return a socket that is bound and, with a `backlog`, listens. Raise OSError."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        for option in options:
            opened.setsockopt(socket.SOL_SOCKET, option, 1)
        opened.bind((host, port))
        if backlog:
            opened.listen(backlog)
    except OSError:
        opened.close()
        raise
    return opened


def bind_unix(host: str, port: int) -> socket.socket:
    """Return a listening socket for a port of a `unix:` host. Raise OSError with the path."""
    path = unix_socket.socket_path(host, port)
    if _is_served(host, port):
        raise OSError(f"{path}: another server listens there; choose another port or folder")
    try:
        return unix_socket.listen(path, BACKLOG)
    except OSError as error:
        reason = f"{error.strerror}; --http-address unix:FOLDER needs a folder in which this user may write"
        raise OSError(f"{path}: {reason}") from None


def _is_served(host: str, port: int) -> bool:
    try:
        unix_socket.connect(host, port).close()
    except BlockingIOError:  # its backlog is full
        return True
    except OSError:  # no such file, or one that a process has left behind
        return False
    return True


def port_number(listener: socket.socket) -> int:
    """Return the port of a socket; that of a unix socket is its file name."""
    name = listener.getsockname()
    return int(name.rpartition("/")[2].partition(".")[0]) if isinstance(name, str) else int(name[1])


def listening_message(listener: socket.socket, host: str, *, tls: bool) -> str:
    """Describe where a socket listens, for the log: `listening on http://127.0.0.1:8080`."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"listening on unix:{name}"
    return f"listening on {'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{name[1]}"


def drop_new_connections(listener: socket.socket) -> None:
    """Drop new connection attempts. Without effect on other systems than Linux: closing may reset connections."""
    if listener.family == socket.AF_UNIX:
        return  # accept_all refuses them, and loses none
    rules = array("B", b"".join(struct.pack("=HBBI", *rule) for rule in _DROP_SYN))
    program = struct.pack("@HP", len(_DROP_SYN), rules.buffer_info()[0])
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def accept_all(listener: socket.socket) -> list[socket.socket]:
    """Accept all connections in the backlog, then close the socket."""
    accepted: list[socket.socket] = []
    with suppress(OSError), listener:
        listener.setblocking(False)
        if listener.family == socket.AF_UNIX:
            listener.shutdown(socket.SHUT_RD)  # the kernel refuses new connections and keeps those in the backlog
        while True:
            accepted.append(listener.accept()[0])
    return accepted
