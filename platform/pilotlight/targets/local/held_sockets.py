"""The listening sockets of the embedded platform, as the control process holds them: which there are, and why.

Shared addresses lead to every service; a port of a service's own is bound when a table names it, or ahead of that, and
given up when a table that had it is followed by one that has not. gRPC ports are only named here: their library
binds for itself, in the gateway.
"""

import socket
from collections.abc import Iterable, Iterator, Sequence

from pilotlight.gateway import addresses
from pilotlight.gateway.addresses import Address, CannotListen
from pilotlight.gateway.messages import Listen
from pilotlight.gateway.table import Table


class HeldSockets:
    """`setting` is what a person changes to choose another shared port."""

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._sockets: dict[str, socket.socket | None] = {}  # None: bound by the gateway itself
        self._shared: set[str] = set()
        self._hosts: list[str] = []
        self._owned: set[str] = set()  # by the table: dropped once one comes that lacks them
        self._served: set[str] | None = set()  # what the gateway was told; None: it must be told in any case

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._sockets)

    def share(self, texts: Iterable[str]) -> None:
        """Addresses of all services; raises CannotListen. Ports of 0 are chosen by the system."""
        for wanted in map(addresses.parse, texts):
            bound = self._bind(wanted, self._setting)
            self._shared.add(str(bound))
            self._hosts.append(bound.host)
            if bound.twin is not None and self._bind_twin(bound.twin, wanted.port == 0):
                self._shared.add(str(bound.twin))
        self._owned -= self._shared

    def add(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Those that cannot be had, each with its reason."""
        failed = []
        for address in map(addresses.parse, texts):
            try:
                self._bind_own(address)
            except CannotListen as error:
                failed.append(f"{address}: {error}")
        return tuple(failed)

    def remove(self, texts: Iterable[str]) -> None:
        for text in self.expanded(texts):
            if text in self._sockets and text not in self._owned | self._shared:
                self._drop(text)

    def follow(self, table: Table) -> tuple[str, ...]:
        """Binds what the table's routes name and gives up what they no longer do; the failures."""
        wanted = [Address(host, port, kind) for host in self._hosts for port, kind in _ports(table)]
        named = set(self.expanded(map(str, wanted)))
        for gone in self._owned - named:
            self._drop(gone)
        failed = self.add(map(str, wanted))
        self._owned = (named & self._sockets.keys()) - self._shared
        return failed

    def adopt(self, held: Sequence[str], came: Sequence[socket.socket]) -> None:
        """Sockets that a living gateway serves. Those that nobody asks for go with the first table."""
        self._sockets.update(zip(held, came, strict=True))
        self._owned.update(held)
        self._served = None

    def order(self) -> tuple[Listen | None, list[socket.socket]]:
        """What the gateway must be told: all addresses, and sockets for those it has not yet. None: it knows."""
        if self._served == self._sockets.keys():
            return None, []
        known = self._served or set()
        lent = {text: found for text, found in self._sockets.items() if found is not None and text not in known}
        others = tuple(text for text in self._sockets if text not in lent)
        self._served = set(self._sockets)
        return Listen(tuple(lent), others, tuple(sorted(self._shared))), list(lent.values())

    def forget_served(self) -> None:
        """Another gateway, which knows nothing yet."""
        self._served = None

    def expanded(self, texts: Iterable[str]) -> Iterator[str]:
        """With the IPv6 side of each."""
        for address in map(addresses.parse, texts):
            yield from (str(each) for each in (address, address.twin) if each is not None)

    def close(self) -> None:
        for text in list(self._sockets):
            self._drop(text)

    def _bind(self, address: Address, setting: str = "") -> Address:
        """As it is held from here on, with its port."""
        if str(address) in self._sockets:
            return address
        if address.kind == "grpc":
            self._sockets[str(address)] = None
            return address
        listener = addresses.bind(address, setting)
        bound = address._replace(port=listener.getsockname()[1])
        self._sockets[str(bound)] = listener
        return bound

    def _bind_own(self, address: Address) -> None:
        """Both sides of it, or neither where one of them is taken: by a stranger, or by what leads to every service."""
        if address.port in {each.port for each in map(addresses.parse, self._shared)}:
            raise CannotListen(f"port {address.port} is the gateway's")
        known = str(address) in self._sockets
        bound = self._bind(address)
        try:
            if bound.twin is not None:
                self._bind_twin(bound.twin, address.port == 0)
        except CannotListen:
            if not known:
                self._drop(str(bound))
            raise

    def _bind_twin(self, twin: Address, port_is_any: bool) -> bool:
        """False where the machine has no IPv6, or where only the port's number on the IPv4 side was ours to choose."""
        if str(twin) in self._sockets:
            return True
        if twin.kind == "grpc":
            if addresses.has_ipv6():
                self._sockets[str(twin)] = None
            return addresses.has_ipv6()
        try:
            listener = addresses.bind_twin(twin)
        except CannotListen:
            if port_is_any:
                return False
            raise
        if listener is not None:
            self._sockets[str(twin)] = listener
        return listener is not None

    def _drop(self, text: str) -> None:
        listener = self._sockets.pop(text)
        if listener is not None:
            listener.close()


def _ports(table: Table) -> Iterator[tuple[int, str]]:
    for route in table.routes:
        if route.port:
            yield route.port, "http"
        if route.grpc_port:
            yield route.grpc_port, "grpc"
