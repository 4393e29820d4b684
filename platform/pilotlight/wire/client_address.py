"""Client address behind proxies: X-Forwarded-For of trusted ones. Pure. Used by gateway and predictor.

Without it all clients of a proxy would share its address, and so one rate limit.
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

Networks = Sequence[IPv4Network | IPv6Network]


def client_address(headers: Mapping[str, str], peer: str, trusted: Networks) -> str:
    """Return the rightmost address of X-Forwarded-For and peer that is no trusted proxy, else the leftmost.

    Only trusted proxies are believed: a client that could forge its address would evade the rate limit.
    """
    address, hops = peer, headers.get("x-forwarded-for", "").split(",")
    while hops and _within(address, trusted):
        address = _without_port(hops.pop().strip()) or address
    return address


def _without_port(hop: str) -> str:
    """Remove the port, which some proxies add and which differs for each connection of a client."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def _within(address: str, networks: Networks) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)
