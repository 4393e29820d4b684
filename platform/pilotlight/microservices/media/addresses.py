"""Allowed IP addresses: public ones, and private ones that the operator permits. Pure."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from pilotlight.microservices.media.limits import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Cloud-internal services at addresses outside of private ranges: Azure's wire server, Alibaba's and Oracle's metadata.
_CLOUD_SERVICES: Final = frozenset({"168.63.129.16", "100.100.100.200", "192.0.0.192"})
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def denial_reason(text: str, permitted: Sequence[Network]) -> str:
    """Return why this address must not be connected to; empty where it may."""
    address = effective_address(ipaddress.ip_address(text.partition("%")[0]))
    if any(address.version == network.version and address in network for network in permitted):
        return ""
    if str(address) in _CLOUD_SERVICES:
        return f"{text} belongs to the cloud's own services"
    if not address.is_global or address.is_multicast or address.is_reserved:
        return f"{text} is private, local or reserved"
    return ""


def literal_denial_reason(host: str, permitted: Sequence[Network]) -> str:
    """Return `denial_reason` of a host that is an IP address; empty for a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ""
    return denial_reason(host, permitted)


def effective_address(address: Address) -> Address:
    """Return the IPv4 address embedded in an IPv6 address (mapped, 6to4, Teredo, NAT64), else the address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is None and int(address) >> 32 == 0 and int(address) > 1:
        inner = ipaddress.IPv4Address(int(address))
    return inner or address
