"""Clients of a request: their address behind proxies, and web pages of other sites. Pure. For gateway and predictor.

Without X-Forwarded-For of trusted proxies all clients of a proxy would share its address, and so one rate limit.
"""

from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Networks = Sequence[IPv4Network | IPv6Network]
LOOPBACK: Final = "127.0.0.1"
ANY_HOST: Final = "*"  # in --allowed-hosts


def client_address(headers: Mapping[str, str], peer: str, trusted: Networks) -> str:
    """Return the rightmost address of X-Forwarded-For and peer that is no trusted proxy, else the leftmost.

    Only trusted proxies are believed: a client that could forge its address would evade the rate limit. Every loopback
    address is 127.0.0.1, and an IPv6 address its /64: that many belong to one client.
    """
    address, hops = peer, headers.get("x-forwarded-for", "").split(",")
    while hops and _within(address, trusted):
        address = _without_port(hops.pop().strip()) or address
    if is_loopback(address):
        return LOOPBACK
    return _network(address) if ":" in address else address


def is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith(("127.", "::ffff:127."))


def foreign_site(headers: Mapping[str, str], allowed: Container[str]) -> str:
    """Return why a server on loopback refuses a request; empty: it does not. `allowed` are host names in lower case.

    Any web page may send requests to this machine and, under a name that resolves to 127.0.0.1, read the responses.
    Browsers tell the page (Origin) and the name (Host); other programs on this machine need neither.
    """
    for header in ("host", "origin"):
        value = headers.get(header, "")
        name = host_name(value.partition("://")[2] if header == "origin" else value)
        if value and not is_local_name(name) and name not in allowed and ANY_HOST not in allowed:
            problem = f"{header.capitalize()} is {value[:200]}, but this address is for clients on this machine"
            return f"{problem}; allow the name with --allowed-hosts of platformctl up or serve"
    return ""


def host_name(authority: str) -> str:
    """Return the host in lower case, without port, brackets and final dot."""
    name, mark, port = authority.rpartition(":")
    return (name if mark and port.isdigit() else authority).lower().rstrip(".").strip("[]")


def is_local_name(host: str) -> bool:
    """Whether a host name always means this machine: localhost and names below it, 127.0.0.0/8, ::1."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(1024)
def _network(address: str) -> str:
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed), 64), strict=False))


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
