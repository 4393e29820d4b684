"""Address rules of downloads: loopback is trusted, metadata services are refused (SSRF). Pure."""

import ipaddress
from urllib.parse import urlsplit

# Instance metadata services that are not link-local: AWS over IPv6, Alibaba, Oracle, Azure's wire server.
_METADATA = {"fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"}


def is_loopback_host(host: str) -> bool:
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def is_loopback_url(url: str) -> bool:
    return is_loopback_host(urlsplit(url).hostname or "")


def is_refused(host: str) -> bool:
    """Whether an IP address belongs to a metadata service or is link-local; False for a host name."""
    address = _address(host)
    return address is not None and (address.is_link_local or str(address) in _METADATA)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
