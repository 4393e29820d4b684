"""Client address behind an ingress: X-Forwarded-For of trusted proxies. Pure.

Without it all clients would share the ingress's address, and so one rate limit.
"""

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from pilotlight.errors import UsageError
from pilotlight.gateway.proxy.responses import Admission, ErrorResponse
from pilotlight.gateway.routing_table import Route

Proxies = tuple[IPv4Network | IPv6Network, ...]


def parse_proxies(written: str, name: str) -> Proxies:
    """Parse `10.244.0.0/16, fd00::/8`. Raises UsageError, which names the setting `name`."""
    networks = []
    for part in filter(None, (part.strip() for part in written.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            raise UsageError(f"{name} = {part}, must be networks such as 10.244.0.0/16: {error}") from error
    return tuple(networks)


def client_address(headers: Mapping[str, str], peer: str, trusted: Proxies) -> str:
    """Return the rightmost address in X-Forwarded-For that is no trusted proxy; addresses left of it can be forged."""
    for address in map(_without_port, reversed([*headers.get("x-forwarded-for", "").split(","), peer])):
        try:
            if any(ip_address(address) in network for network in trusted):
                continue
        except ValueError:
            pass  # no address, so no proxy
        return address or peer
    return peer


def _without_port(written: str) -> str:
    """Return the address without port (`1.2.3.4:5678`, `[2001:db8::1]:5678`), which some proxies add."""
    address = written.strip()
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


class ProxiedAdmission:
    """Passes the client's address instead of the proxy's to another admission."""

    def __init__(self, admission: Admission, trusted: Proxies) -> None:
        self._admission, self._trusted = admission, trusted

    def admit(self, route: Route, headers: Mapping[str, str], peer: str) -> ErrorResponse | None:
        if self._trusted and route.rate is not None:
            peer = client_address(headers, peer, self._trusted)
        return self._admission.admit(route, headers, peer)
