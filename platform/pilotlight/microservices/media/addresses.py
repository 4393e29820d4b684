"""Which addresses may be connected to: public ones, and private ones that an operator has named. Pure."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from pilotlight.microservices.media.limits import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Services of a cloud's own network behind addresses that are public by their number: Azure's wire server, Alibaba's
# and Oracle's metadata.
_OWN_OF_CLOUDS: Final = frozenset({"168.63.129.16", "100.100.100.200", "192.0.0.192"})
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def refusal(text: str, permitted: Sequence[Network]) -> str:
    """Why this address must not be connected to; empty where it may."""
    address = meant(ipaddress.ip_address(text.partition("%")[0]))
    if any(address.version == network.version and address in network for network in permitted):
        return ""
    if str(address) in _OWN_OF_CLOUDS:
        return f"{text} belongs to the cloud's own services"
    if not address.is_global or address.is_multicast or address.is_reserved:
        return f"{text} is private, local or reserved"
    return ""


def literal_refusal(host: str, permitted: Sequence[Network]) -> str:
    """As `refusal`, of a host that is written as an address; of a name nothing can be told here."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ""
    return refusal(host, permitted)


def meant(address: Address) -> Address:
    """The IPv4 address inside of one of the ways to write it as IPv6, which end at the same machine."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and address in _NAT64:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is None and int(address) >> 32 == 0 and int(address) > 1:
        inner = ipaddress.IPv4Address(int(address))
    return inner or address
