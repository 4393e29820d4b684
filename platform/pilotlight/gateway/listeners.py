"""Listeners of the gateway: sockets received or bound, and the route that each serves."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from pilotlight.errors import PlatformError
from pilotlight.gateway import addresses
from pilotlight.gateway.addresses import BACKLOG, Address
from pilotlight.gateway.messages import Listen
from pilotlight.gateway.plane import DataPlane, RouteKey
from pilotlight.gateway.table import Table

UNKNOWN_ROUTE: RouteKey = ("", "")  # of the port of a deleted service


class Server(Protocol):
    """A server; requests in flight continue after `close`."""

    def close(self) -> None: ...


# Serves gRPC at an address, for the route that the function returns at each call; raises CannotListen.
StartGrpc = Callable[[Address, Callable[[], RouteKey]], Awaitable[Server]]


class Listeners:
    """Listeners by address. Used by one task at a time.

    Connections are accepted after `start`, once the first table is there: until then every service would be unknown.
    """

    def __init__(self, plane: DataPlane, start_grpc: StartGrpc) -> None:
        self._plane, self._start_grpc = plane, start_grpc
        self._servers: dict[str, Server] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._shared: frozenset[str] = frozenset()
        self._routes: dict[int, RouteKey] = {}
        self._started = False
        self._pending: list[tuple[Listen, Sequence[socket.socket]]] = []
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
        received = dict(zip(message.held, sockets, strict=True))
        self._shared = frozenset(message.shared)
        failed = []
        for gone in self._servers.keys() - {*message.held, *message.wanted}:
            self._close(gone)
        for text in (*message.held, *message.wanted):
            try:
                await self._open(text, received.pop(text, None))
            except PlatformError as error:
                failed.append(f"{text}: {error}")
        self.failed = tuple(failed)

    def update(self, table: Table) -> None:
        """Update the routes of dedicated ports."""
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
        self._pending.clear()
        for text in list(self._servers):
            self._close(text)

    async def _open(self, text: str, listener: socket.socket | None) -> None:
        if text in self._servers:
            if listener is not None:
                listener.close()
            return
        address = addresses.parse(text)
        if address.kind == "grpc":
            self._servers[text] = await self._start_grpc(address, lambda: self._routes.get(address.port, UNKNOWN_ROUTE))
            return
        listener = listener or addresses.bind(address)
        loop = asyncio.get_running_loop()
        self._servers[text] = await loop.create_server(
            self._factory(text, address.port), sock=listener, backlog=BACKLOG
        )
        self._sockets[text] = listener

    def _factory(self, text: str, port: int) -> Callable[[], asyncio.Protocol]:
        """Return a factory that looks up the route at each connection: a port may pass to another service."""

        def make() -> asyncio.Protocol:
            key = None if text in self._shared else self._routes.get(port, UNKNOWN_ROUTE)
            return self._plane.protocol_factory(key)()

        return make

    def _close(self, text: str) -> None:
        """Close a listener; connections not yet accepted wait for another holder of the socket."""
        self._sockets.pop(text, None)
        self._servers.pop(text).close()
