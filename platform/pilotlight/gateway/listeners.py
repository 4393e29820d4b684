"""The sockets that the gateway serves: those it was handed, those it bound itself, and which route each leads to."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from pilotlight.errors import PlatformError
from pilotlight.gateway import addresses
from pilotlight.gateway.addresses import BACKLOG, Address
from pilotlight.gateway.messages import Listen
from pilotlight.gateway.plane import Key, Plane
from pilotlight.gateway.table import Table

NOWHERE: Key = ("", "")  # where the port of a service that is gone leads


class Server(Protocol):
    """Something that takes requests until it is closed; those it has go on."""

    def close(self) -> None: ...


# Serves gRPC at an address for the route that the function names at the time of a call; raises CannotListen.
StartGrpc = Callable[[Address, Callable[[], Key]], Awaitable[Server]]


class Listeners:
    """By address. Used by one task at a time.

    Nothing is accepted before `begin`, which the first table calls for: until then every service would be unknown.
    """

    def __init__(self, plane: Plane, start_grpc: StartGrpc) -> None:
        self._plane, self._start_grpc = plane, start_grpc
        self._servers: dict[str, Server] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._shared: frozenset[str] = frozenset()
        self._routes: dict[int, Key] = {}
        self._begun = False
        self._early: list[tuple[Listen, Sequence[socket.socket]]] = []
        self.failed: tuple[str, ...] = ()

    async def begin(self) -> None:
        self._begun = True
        early, self._early = self._early, []
        for order, came in early:
            await self.serve(order, came)

    async def serve(self, order: Listen, came: Sequence[socket.socket]) -> None:
        """Exactly these from here on. One that is served already goes on undisturbed."""
        if not self._begun:
            self._early.append((order, came))
            return
        handed = dict(zip(order.held, came, strict=True))
        self._shared = frozenset(order.shared)
        failed = []
        for gone in self._servers.keys() - {*order.held, *order.wanted}:
            self._close(gone)
        for text in (*order.held, *order.wanted):
            try:
                await self._open(text, handed.pop(text, None))
            except PlatformError as error:
                failed.append(f"{text}: {error}")
        self.failed = tuple(failed)

    def follow(self, table: Table) -> None:
        """Which route each port leads to."""
        self._routes = {
            port: (route.namespace, route.name)
            for route in table.routes
            for port in (route.port, route.grpc_port)
            if port
        }

    def lend(self) -> tuple[tuple[str, ...], list[socket.socket]]:
        """Those that wait for the first table too: nobody else may still hold them."""
        early = {text: each for order, came in self._early for text, each in zip(order.held, came, strict=True)}
        held = {**early, **self._sockets}
        return tuple(held), list(held.values())

    def close(self) -> None:
        self._early.clear()
        for text in list(self._servers):
            self._close(text)

    async def _open(self, text: str, listener: socket.socket | None) -> None:
        if text in self._servers:
            if listener is not None:
                listener.close()
            return
        address = addresses.parse(text)
        if address.kind == "grpc":
            self._servers[text] = await self._start_grpc(address, lambda: self._routes.get(address.port, NOWHERE))
            return
        listener = listener or addresses.bind(address)
        loop = asyncio.get_running_loop()
        self._servers[text] = await loop.create_server(
            self._factory(text, address.port), sock=listener, backlog=BACKLOG
        )
        self._sockets[text] = listener

    def _factory(self, text: str, port: int) -> Callable[[], asyncio.Protocol]:
        """Asked at each connection, since a port may pass from one service to another."""

        def make() -> asyncio.Protocol:
            key = None if text in self._shared else self._routes.get(port, NOWHERE)
            return self._plane.handler(key)()

        return make

    def _close(self, text: str) -> None:
        """Who has connected and was not yet accepted waits for whoever else holds the socket."""
        self._sockets.pop(text, None)
        self._servers.pop(text).close()
