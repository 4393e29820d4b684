"""GET of a web address, protected against SSRF: checked, pinned to the checked IP, limited in bytes and time.

A name is resolved once, all of its addresses must be allowed, and the connection goes to one of them, which prevents
DNS rebinding. Proxies of the environment are not used, since they would resolve the name themselves.
"""

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from typing import Final

from pilotlight.microservices.media.limits import Limits, MediaError, Network, unreachable
from pilotlight.microservices.media.references import WebAddress, is_listed, redirect_target

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], list[str]]
CHUNK: Final = 256 * 1024
CONNECT_S: Final = 10.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
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


class FetchBudget:
    """Remaining bytes and time of all media of one request, on the monotonic clock. Thread-safe."""

    def __init__(self, limits: Limits, started: float) -> None:
        self.limits = limits
        self.ends = started + limits.seconds
        self._left = limits.total_bytes
        self._lock = Lock()

    def remaining_s(self) -> float:
        remaining = self.ends - time.monotonic()
        if remaining <= 0:
            raise MediaError(f"exceeds the limit of {self.limits.seconds:g} s for all media of a request")
        return remaining

    def spend(self, size: int) -> None:
        with self._lock:
            self._left -= size
            if self._left < 0:
                limit = self.limits.total_bytes
                raise MediaError(f"exceeds the limit of {limit} bytes for all media of a request")


def resolve(host: str, port: int) -> list[str]:
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in addresses))


def get(address: WebAddress, budget: FetchBudget, *, trusted: bool = False, resolver: Resolve = resolve) -> bytes:
    """Return the body. `trusted`: a presigned address of the workspace's store, exempt from the list of domains."""
    for _ in range(budget.limits.redirects + 1):
        check_listed(address, budget.limits, trusted=trusted)
        with _get(address, budget, resolver) as response:
            if response.status not in _REDIRECTS:
                return _body(response, address, budget, trusted)
            location = response.getheader("Location") or ""
        address = redirect_target(address, location)
        trusted = False
    raise unreachable(f"{address.redacted_url}: redirected more often than PILOTLIGHT_MEDIA_REDIRECTS allows")


def check_listed(address: WebAddress, limits: Limits, *, trusted: bool) -> None:
    if not address.secure and not limits.allow_http:
        raise MediaError("is plain http://, must be https://")
    if not trusted and not is_listed(address.host, limits.domains):
        raise MediaError("is on a host that is not allowed; the operator lists hosts in PILOTLIGHT_MEDIA_DOMAINS")


def resolve_allowed(address: WebAddress, limits: Limits, resolver: Resolve = resolve) -> list[str]:
    """Resolve the host. Raise unless all of its addresses are allowed."""
    try:
        addresses = resolver(address.host, address.port)
    except (OSError, UnicodeError) as error:
        raise unreachable(f"{address.redacted_url}: the name cannot be resolved ({error})") from error
    for each in addresses:
        if reason := denial_reason(each, limits.permitted()):
            raise unreachable(f"{address.redacted_url}: {reason}; PILOTLIGHT_MEDIA_NETWORKS can allow it")
    if not addresses:
        raise unreachable(f"{address.redacted_url}: the name has no address")
    return addresses


def check_address(address: WebAddress, limits: Limits, *, trusted: bool, resolver: Resolve = resolve) -> WebAddress:
    """Check an address that another process connects to, which cannot be pinned there."""
    check_listed(address, limits, trusted=trusted)
    resolve_allowed(address, limits, resolver)
    return address


@contextmanager
def _get(address: WebAddress, budget: FetchBudget, resolver: Resolve) -> Iterator[http.client.HTTPResponse]:
    """Yield the response. A timer closes the connection at the end of the budget, against slow senders."""
    pinned = resolve_allowed(address, budget.limits, resolver)
    connection = http.client.HTTPConnection(address.host, address.port)
    timer = None
    try:
        connection.sock = _connect(pinned, address.port, budget)
        timer = Timer(budget.remaining_s(), _shut_down, [sockets := [connection.sock]])
        timer.daemon = True
        timer.start()
        if address.secure:  # the certificate must match the host name, not the pinned IP
            tls = ssl.create_default_context()
            sockets[0] = connection.sock = tls.wrap_socket(connection.sock, server_hostname=address.host)
        connection.sock.settimeout(budget.remaining_s())
        headers = {"Host": address.authority, "Accept-Encoding": "identity", "Connection": "close"}
        connection.request("GET", address.target, headers={**headers, "User-Agent": "pilotlight"})
        with connection.getresponse() as response:
            yield response
    except (OSError, http.client.HTTPException) as error:
        budget.remaining_s()
        raise unreachable(f"{address.redacted_url} at {', '.join(pinned)}: {type(error).__name__}: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def _connect(pinned: Sequence[str], port: int, budget: FetchBudget) -> socket.socket:
    for each in pinned[:-1]:
        with suppress(OSError):
            return socket.create_connection((each, port), timeout=min(CONNECT_S, budget.remaining_s()))
    return socket.create_connection((pinned[-1], port), timeout=min(CONNECT_S, budget.remaining_s()))


def _shut_down(sockets: Sequence[socket.socket]) -> None:
    with suppress(OSError):
        sockets[0].shutdown(socket.SHUT_RDWR)


def _body(response: http.client.HTTPResponse, address: WebAddress, budget: FetchBudget, trusted: bool) -> bytes:
    if response.status != 200:
        raise _status_error(response.status, address, trusted)
    limit = budget.limits.bytes
    if response.length is not None and response.length > limit:
        raise MediaError(f"has {response.length} bytes, the limit is {limit}")
    content = read_limited(response.read, budget)
    budget.remaining_s()
    if response.length:
        raise unreachable(f"{address.redacted_url}: the response ended {response.length} bytes early")
    return content


def read_limited(read: Callable[[int], bytes], budget: FetchBudget) -> bytes:
    """Read to the end in chunks. Raise MediaError where it is larger than one medium may be, or all together."""
    content = bytearray()
    while chunk := read(CHUNK):
        content += chunk
        if len(content) > budget.limits.bytes:
            raise MediaError(f"has more than {budget.limits.bytes} bytes, the limit")
        budget.spend(len(chunk))
    return bytes(content)


def _status_error(status: int, address: WebAddress, trusted: bool) -> MediaError:
    """Return the error of a status; the client gets details of the workspace's own store only, which it can correct."""
    reason = f"{address.redacted_url}: the server returned {status}"
    if trusted and status in {401, 403}:
        message = "is denied by the store: the workspace's credentials are wrong or may not read it"
        return MediaError(message, reason, status)
    if trusted and status == 404:
        return MediaError("does not exist in the store; check the bucket and the path", reason, status)
    return unreachable(reason)
