"""Who a request is from when an ingress stands before the gateway: the address that a trusted proxy says. Pure.

Without it all clients would share the ingress's address, and with that one allowance of a rate limit.
"""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from pilotlight.errors import UsageError
from pilotlight.gateway.gate import Gate, Refusal
from pilotlight.gateway.table import Route

Proxies = tuple[IPv4Network | IPv6Network, ...]


def proxies(written: str, name: str) -> Proxies:
    """`10.244.0.0/16, fd00::/8`; `name` is what to change when it makes no sense."""
    found = []
    for part in filter(None, (part.strip() for part in written.split(","))):
        try:
            found.append(ip_network(part))
        except ValueError as error:
            raise UsageError(f"{name} = {part}, must be networks such as 10.244.0.0/16: {error}") from error
    return tuple(found)


def client_of(headers: Mapping[str, str], peer: str, trusted: Proxies) -> str:
    """From the right, the first in X-Forwarded-For that is no trusted proxy: what stands left of it anybody may say."""
    for address in map(_bare, reversed([*headers.get("x-forwarded-for", "").split(","), peer])):
        if not _within(address, trusted):
            return address or peer
    return peer


def _bare(written: str) -> str:
    """Some proxies add the port (`1.2.3.4:5678`, `[2001:db8::1]:5678`), which differs with each connection."""
    address = written.strip()
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _within(address: str, trusted: Proxies) -> bool:
    try:
        return any(ip_address(address) in network for network in trusted)
    except ValueError:
        return False


class ProxiedGate:
    """The gate behind it sees the client's address instead of the proxy's."""

    def __init__(self, gate: Gate, trusted: Proxies) -> None:
        self._gate, self._trusted = gate, trusted

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> Refusal | None:
        if self._trusted and route.rate is not None:
            peer = client_of(headers, peer, self._trusted)
        return self._gate.admit(route, headers, peer)
