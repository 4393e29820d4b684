"""Listening sockets of the embedded platform, as the control process holds them.

Shared addresses route to every service. A service's own port is bound when a table names it, or ahead of that, and
closed by the next table that omits it. gRPC ports are only recorded here: grpcio binds them inside the gateway.
"""

import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pilotlight.gateway import listeners
from pilotlight.gateway.control_link import Listen
from pilotlight.gateway.listeners import Address, CannotListen
from pilotlight.gateway.routing_table import Table

PORT_SETTING: Final = "PILOTLIGHT_GATEWAY_PORT"  # of the shared port, for error messages


class ListenerSet:
    """Sockets by address, and which of them the gateway has."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket | None] = {}  # None: bound by the gateway itself
        self._shared: set[str] = set()
        self._hosts: list[str] = []
        self._table_owned: set[str] = set()  # closed by the next table that omits them
        self._served: set[str] | None = set()  # addresses that the gateway has; None: unknown, send all

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._sockets)

    def bind_shared(self, texts: Iterable[str]) -> None:
        """Bind addresses that serve all services; port 0 is chosen by the system. Raise CannotListen."""
        for wanted in map(listeners.parse, texts):
            bound = self._bind(wanted, PORT_SETTING)
            self._shared.add(str(bound))
            if bound.kind == "http":
                self._hosts.append(bound.host)
            ipv6 = bound.ipv6_equivalent
            if ipv6 is not None and self._bind_ipv6_equivalent(ipv6, wanted.port == 0):
                self._shared.add(str(ipv6))
        self._table_owned -= self._shared

    def bind(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Bind services' own addresses; return failures as `address: reason`."""
        failed = []
        for address in map(listeners.parse, texts):
            try:
                self._bind_service_port(address)
            except CannotListen as error:
                failed.append(f"{address}: {error}")
        return tuple(failed)

    def release(self, texts: Iterable[str]) -> None:
        for text in self.with_ipv6_equivalents(texts):
            if text in self._sockets and text not in self._table_owned | self._shared:
                self._close(text)

    def sync(self, table: Table) -> tuple[str, ...]:
        """Bind the ports that the table's routes name, close those they no longer name; return failures."""
        routed = [each for route in table.routes for each in ((route.port, "http"), (route.grpc_port, "grpc"))]
        desired = [Address(host, port, kind) for host in self._hosts for port, kind in routed if port]
        named = set(self.with_ipv6_equivalents(map(str, desired)))
        for unused in self._table_owned - named:
            self._close(unused)
        failed = self.bind(map(str, desired))
        self._table_owned = (named & self._sockets.keys()) - self._shared
        return failed

    def adopt(self, held: Sequence[str], sockets: Sequence[socket.socket]) -> None:
        """Adopt a living gateway's sockets. The first table closes those that it does not name."""
        self._sockets.update(zip(held, sockets, strict=True))
        self._table_owned.update(held)
        self._served = None

    def pending_update(self) -> tuple[Listen | None, list[socket.socket]]:
        """Return all addresses with the sockets that the gateway lacks; None if it is up to date."""
        if self._served == self._sockets.keys():
            return None, []
        known = self._served or set()
        sockets = self._sockets.items()
        lent = {text: listener for text, listener in sockets if listener is not None and text not in known}
        others = tuple(text for text in self._sockets if text not in lent)
        self._served = set(self._sockets)
        return Listen(tuple(lent), others, tuple(sorted(self._shared))), list(lent.values())

    def unserve(self, texts: Iterable[str]) -> None:
        """Send these addresses again: only the gateway knows whether a gRPC port is bound."""
        if self._served is not None:
            self._served -= set(self.with_ipv6_equivalents(texts))

    def reset_served(self) -> None:
        """Forget what was sent: a new gateway has no sockets yet."""
        self._served = None

    def with_ipv6_equivalents(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield each address and its IPv6 equivalent."""
        for address in map(listeners.parse, texts):
            yield from (str(each) for each in (address, address.ipv6_equivalent) if each is not None)

    def close(self) -> None:
        for text in list(self._sockets):
            self._close(text)

    def _bind(self, address: Address, setting: str = "") -> Address:
        """Bind an address unless bound; return it with its real port."""
        if str(address) in self._sockets:
            return address
        if address.kind == "grpc":
            self._sockets[str(address)] = None
            return address
        listener = listeners.bind(address, setting)
        bound = address._replace(port=listener.getsockname()[1])
        self._sockets[str(bound)] = listener
        return bound

    def _bind_service_port(self, address: Address) -> None:
        """Bind an address and its IPv6 equivalent, or neither. Raise CannotListen for a port in use or shared."""
        if address.port in {each.port for each in map(listeners.parse, self._shared)}:
            raise CannotListen(f"port {address.port} belongs to the gateway")
        known = str(address) in self._sockets
        bound = self._bind(address)
        try:
            if bound.ipv6_equivalent is not None:
                self._bind_ipv6_equivalent(bound.ipv6_equivalent, address.port == 0)
        except CannotListen:
            if not known:
                self._close(str(bound))
            raise

    def _bind_ipv6_equivalent(self, address: Address, port_is_any: bool) -> bool:
        """Return False without IPv6, or if the port that the system chose for IPv4 is in use on IPv6."""
        if str(address) in self._sockets:
            return True
        if address.kind == "grpc":
            if listeners.has_ipv6():
                self._sockets[str(address)] = None
            return listeners.has_ipv6()
        try:
            listener = listeners.bind_ipv6(address)
        except CannotListen:
            if port_is_any:
                return False
            raise
        if listener is not None:
            self._sockets[str(address)] = listener
        return listener is not None

    def _close(self, text: str) -> None:
        listener = self._sockets.pop(text)
        if listener is not None:
            listener.close()
