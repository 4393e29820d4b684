"""Listen addresses, `host:port/kind`, and the listeners of the gateway with the route that each serves.

The control process binds and holds HTTP listeners, the gateway serves them.
"""

import asyncio
import errno
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pilotlight.errors import PlatformError, UsageError
from pilotlight.gateway.control_link import Listen
from pilotlight.gateway.proxy.data_plane import DataPlane, RouteKey
from pilotlight.gateway.routing_table import Table
from pilotlight.wire import unix_socket
from pilotlight.wire.client_address import is_local_name

if TYPE_CHECKING:
    from ssl import SSLContext

BACKLOG: Final = 4096  # connections that wait while a gateway starts; limited by net.core.somaxconn
KINDS: Final = ("http", "https", "grpc")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[^\[\]:/]+):(\d{1,5})(?:/(\w+))?")
_IPV6_EQUIVALENTS: Final = {"127.0.0.1": "::1", "0.0.0.0": "::"}  # noqa: S104 - set by the user
_LISTENING: Final = "0A"  # state in /proc/net/tcp
RETRY_S: Final = (0.05, 30.0)  # between attempts to bind a port in use: first pause, doubled up to the last
UNKNOWN_ROUTE: RouteKey = ("", "")  # of the port of a deleted service


class CannotListen(PlatformError):
    """An address that cannot be bound; the message names it, its owner if known, and the fix."""


class Address(NamedTuple):
    """`host` is a numeric address, or a host name of this machine."""

    host: str
    port: int
    kind: str = "http"

    def __str__(self) -> str:
        return f"{self.host_port}/{self.kind}"

    @property
    def host_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ipv6_equivalent(self) -> "Address | None":
        """The IPv6 counterpart of a loopback or wildcard address: `localhost` may mean either."""
        host = _IPV6_EQUIVALENTS.get(self.host)
        return None if host is None else self._replace(host=host)


def parse(text: str) -> Address:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535 or (match[3] or "http") not in KINDS:
        raise UsageError(
            f"listen = {text}, must be host:port/kind such as 127.0.0.1:8090/http; kinds: {', '.join(KINDS)}"
        )
    return Address(match[1].strip("[]"), int(match[2]), match[3] or "http")


def bind(address: Address, setting: str = "") -> socket.socket:
    """Return a listening socket. Raises CannotListen, which names `setting` if the port is taken."""
    if unix_socket.is_unix(address.host):
        return unix_socket.listen(unix_socket.socket_path(address.host, address.port), BACKLOG)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise CannotListen(bind_error_message(address, error, setting)) from error
    return listener


def check_free(addresses: Mapping[Address, str]) -> None:
    """Raise CannotListen that names every address which cannot be bound, with its setting, the value."""
    taken = []
    for address, setting in addresses.items():
        try:
            bind(address, setting).close()
        except CannotListen as error:
            taken.append(str(error))
    if taken:
        raise CannotListen("; ".join(taken))


def bind_ipv6(address: Address, setting: str = "") -> socket.socket | None:
    """As `bind`, but return None if the machine has no IPv6."""
    try:
        return bind(address, setting)
    except CannotListen as error:
        cause = error.__cause__
        assert isinstance(cause, OSError)
        if cause.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise


@cache
def has_ipv6() -> bool:
    """Whether `::1` can be bound."""
    listener = bind_ipv6(Address("::1", 0))
    if listener is not None:
        listener.close()
    return listener is not None


def bind_error_message(address: Address, error: OSError, setting: str = "") -> str:
    """Return a sentence with the address, the cause and the fix."""
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(address.port)
        fix = f"stop it or choose another port with {setting}" if setting else "stop it or choose another port"
        return f"port {address.port} on {address.host} is in use{f' by {owner}' if owner else ''}; {fix}"
    if error.errno == errno.EACCES:
        return f"port {address.port} on {address.host} needs privileges; choose a port above 1023"
    return f"cannot listen on {address.host_port}: {error.strerror or error}"


def port_owner(port: int) -> str:
    """Return the process that listens on the port, `name (pid 1234)`, as far as /proc is readable."""
    for pid in listening_pids(port):
        with suppress(OSError):
            return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return ""


def listening_pids(port: int) -> Iterator[int]:
    """Yield the processes that listen on the port, as far as /proc is readable."""
    sockets = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    for process in os.listdir("/proc") if sockets else ():
        if process.isdigit() and sockets & set(_open_files(f"/proc/{process}/fd")):
            yield int(process)


def _open_files(folder: str) -> Iterator[str]:
    """Yield the targets of a process's descriptors; it may exit or close some at any time."""
    with suppress(OSError):
        for descriptor in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(f"{folder}/{descriptor}")


def listening_inodes(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on the port."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            matching = [row for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]
            inodes.update(row[9] for row in matching)
    return inodes - {"0"}


class Server(Protocol):
    """A server; requests in flight continue after `close`."""

    def close(self) -> None: ...


# Serves gRPC at an address, for the route that the function returns at each call; raises CannotListen.
StartGrpc = Callable[[Address, Callable[[], RouteKey]], Awaitable[Server]]


class Listeners:
    """Listeners by address. A port in use is reported as failed and bound later, once it is free.

    Connections are accepted after `start`, once the first table is there: until then every service would be unknown.
    """

    def __init__(self, plane: DataPlane, start_grpc: StartGrpc, tls: "SSLContext | None" = None) -> None:
        self._plane, self._start_grpc, self._tls = plane, start_grpc, tls
        self._servers: dict[str, Server] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._shared: frozenset[str] = frozenset()
        self._routes: dict[int, RouteKey] = {}
        self._started = False
        self._pending: list[tuple[Listen, Sequence[socket.socket]]] = []
        self._lock = asyncio.Lock()  # between messages and retries
        self._retrying: asyncio.Task[None] | None = None
        self.failed: tuple[str, ...] = ()

    async def start(self) -> None:
        self._started = True
        pending, self._pending = self._pending, []
        for message, sockets in pending:
            await self.serve(message, sockets)

    async def serve(self, message: Listen, sockets: Sequence[socket.socket]) -> None:
        """Serve exactly these addresses; existing listeners among them continue."""
        if not self._started:
            self._pending.append((message, sockets))
            return
        async with self._lock:
            self._cancel_retry()
            self._shared = frozenset(message.shared)
            for gone in self._servers.keys() - {*message.held, *message.wanted}:
                self._close(gone)
            texts = (*message.held, *message.wanted)
            await self._open_all(texts, dict(zip(message.held, sockets, strict=True)))
        if self.failed:
            self._retrying = asyncio.create_task(self._retry(texts))

    def update(self, table: Table) -> None:
        self._routes = {
            port: (route.namespace, route.name)
            for route in table.routes
            for port in (route.port, route.grpc_port)
            if port
        }

    def lend(self) -> tuple[tuple[str, ...], list[socket.socket]]:
        """Return addresses and sockets, including those not served yet: no other process may hold them."""
        pending = {
            text: each for message, sockets in self._pending for text, each in zip(message.held, sockets, strict=True)
        }
        held = {**pending, **self._sockets}
        return tuple(held), list(held.values())

    def close(self) -> None:
        self._cancel_retry()
        self._pending.clear()
        for text in list(self._servers):
            self._close(text)

    async def _open_all(self, texts: Sequence[str], received: dict[str, socket.socket]) -> None:
        failed = []
        for text in texts:
            try:
                await self._open(text, received.pop(text, None))
            except PlatformError as error:
                failed.append(f"{text}: {error}")
        self.failed = tuple(failed)

    async def _retry(self, texts: Sequence[str]) -> None:
        pause = RETRY_S[0]
        while self.failed:
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_S[1])
            async with self._lock:
                await self._open_all(texts, {})

    def _cancel_retry(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()

    async def _open(self, text: str, listener: socket.socket | None) -> None:
        if text in self._servers:
            if listener is not None:
                listener.close()
            return
        address = parse(text)
        if address.kind == "grpc":
            self._servers[text] = await self._start_grpc(address, lambda: self._routes.get(address.port, UNKNOWN_ROUTE))
            return
        if address.kind == "https" and self._tls is None:
            raise CannotListen(f"no certificate is set for {address.host_port}")
        listener = listener or bind(address)
        loop = asyncio.get_running_loop()
        self._servers[text] = await loop.create_server(
            self._factory(text, address), sock=listener, backlog=BACKLOG,
            ssl=self._tls if address.kind == "https" else None,
        )  # fmt: skip
        self._sockets[text] = listener

    def _factory(self, text: str, address: Address) -> Callable[[], asyncio.Protocol]:
        """Return a factory that looks up the route at each connection: a port may pass to another service."""
        loopback = is_local_name(address.host)

        def make() -> asyncio.Protocol:
            key = None if text in self._shared else self._routes.get(address.port, UNKNOWN_ROUTE)
            return self._plane.protocol_factory(key, loopback)()

        return make

    def _close(self, text: str) -> None:
        """Close a listener; connections not yet accepted wait for another holder of the socket."""
        self._sockets.pop(text, None)
        self._servers.pop(text).close()
