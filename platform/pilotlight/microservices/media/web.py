"""One GET of a web address, safely: checked, pinned to the address that was checked, bounded in bytes and time.

A name is resolved once; every address that it has must be allowed, and the connection goes to one of those, so that a
name which changes its mind between check and fetch gains nothing. Proxies of the environment are not used: behind one
nobody here would see which address is asked.
"""

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from typing import Final

from pilotlight.microservices.media.addresses import refusal
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.media.references import WebAddress, listed, redirected
from pilotlight.microservices.media.refusals import Refusal, unreached

PIECE: Final = 256 * 1024
CONNECT_S: Final = 10.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
Resolve = Callable[[str, int], list[str]]


class Allowance:
    """What is left for all media of one request together: bytes, and time on the monotonic clock."""

    def __init__(self, limits: Limits, started: float) -> None:
        self.limits = limits
        self.ends = started + limits.seconds
        self._left = limits.total_bytes
        self._lock = Lock()

    def left(self) -> float:
        remaining = self.ends - time.monotonic()
        if remaining <= 0:
            raise Refusal(f"took longer than the {self.limits.seconds:g} s that all media of a request may take")
        return remaining

    def take(self, size: int) -> None:
        with self._lock:
            self._left -= size
            if self._left < 0:
                raise Refusal(f"is more than the {self.limits.total_bytes} bytes that all media of a request may have")


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def get(address: WebAddress, allowance: Allowance, *, trusted: bool = False, resolver: Resolve = resolve) -> bytes:
    """The body. `trusted`: an address that the workspace's store has signed, which no list of domains need name."""
    for _ in range(allowance.limits.redirects + 1):
        check_listed(address, allowance.limits, trusted=trusted)
        with _answer(address, allowance, resolver) as answer:
            if answer.status not in _REDIRECTS:
                return _body(answer, address, allowance, trusted)
            location = answer.getheader("Location") or ""
        address = redirected(address, location)
        trusted = False
    raise unreached(f"{address.shown}: redirected more often than PILOTLIGHT_MEDIA_REDIRECTS allows")


def check_listed(address: WebAddress, limits: Limits, *, trusted: bool) -> None:
    if not address.secure and not limits.allow_http:
        raise Refusal("is plain http://, must be https://")
    if not trusted and not listed(address.host, limits.domains):
        raise Refusal(
            "is on a host that media are not taken from; the operator lists hosts in PILOTLIGHT_MEDIA_DOMAINS"
        )


def checked(address: WebAddress, limits: Limits, resolver: Resolve = resolve) -> list[str]:
    """The addresses that may be connected to: all that the name has, or none."""
    try:
        found = resolver(address.host, address.port)
    except (OSError, UnicodeError) as error:
        raise unreached(f"{address.shown}: the name cannot be resolved ({error})") from error
    for each in found:
        if why := refusal(each, limits.permitted()):
            raise unreached(f"{address.shown}: {why}; PILOTLIGHT_MEDIA_NETWORKS can permit it")
    if not found:
        raise unreached(f"{address.shown}: the name has no address")
    return found


def vouched(address: WebAddress, limits: Limits, *, trusted: bool, resolver: Resolve = resolve) -> WebAddress:
    """One that another process connects to: judged as it would be here, but nobody can pin it there."""
    check_listed(address, limits, trusted=trusted)
    checked(address, limits, resolver)
    return address


@contextmanager
def _answer(address: WebAddress, allowance: Allowance, resolver: Resolve) -> Iterator[http.client.HTTPResponse]:
    """Whoever sends a byte now and then cannot hold the connection: a timer ends it with the allowance."""
    pinned = checked(address, allowance.limits, resolver)
    connection = http.client.HTTPConnection(address.host, address.port)
    timer = None
    try:
        plain = _connected(pinned, address.port, allowance)
        timer = Timer(allowance.left(), _end, [held := [plain]])
        timer.daemon = True
        timer.start()
        held[0] = connection.sock = _secured(plain, address)
        connection.sock.settimeout(allowance.left())
        headers = {"Host": address.authority, "Accept-Encoding": "identity", "Connection": "close"}
        connection.request("GET", address.target, headers={**headers, "User-Agent": "pilotlight"})
        with connection.getresponse() as answer:
            yield answer
    except (OSError, http.client.HTTPException) as error:
        allowance.left()
        raise unreached(f"{address.shown} at {', '.join(pinned)}: {type(error).__name__}: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def _connected(pinned: Sequence[str], port: int, allowance: Allowance) -> socket.socket:
    for each in pinned[:-1]:
        with suppress(OSError):
            return socket.create_connection((each, port), timeout=min(CONNECT_S, allowance.left()))
    return socket.create_connection((pinned[-1], port), timeout=min(CONNECT_S, allowance.left()))


def _secured(plain: socket.socket, address: WebAddress) -> socket.socket:
    """The certificate must be for the name that was asked for, whatever address the connection goes to."""
    if not address.secure:
        return plain
    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise


def _end(held: Sequence[socket.socket]) -> None:
    with suppress(OSError):
        held[0].shutdown(socket.SHUT_RDWR)


def _body(answer: http.client.HTTPResponse, address: WebAddress, allowance: Allowance, trusted: bool) -> bytes:
    if answer.status != 200:
        raise _failed(answer.status, address, trusted)
    most = allowance.limits.bytes
    if answer.length is not None and answer.length > most:
        raise Refusal(f"has {answer.length} bytes, more than the {most} that are taken")
    pieces = list[bytes]()
    size = 0
    while piece := answer.read(PIECE):
        size += len(piece)
        if size > most:
            raise Refusal(f"has more than the {most} bytes that are taken")
        allowance.take(len(piece))
        pieces.append(piece)
    allowance.left()
    if answer.length:
        raise unreached(f"{address.shown}: the answer ended {answer.length} bytes early")
    return b"".join(pieces)


def _failed(status: int, address: WebAddress, trusted: bool) -> Refusal:
    """What a workspace's own store says may be told: its owner can mend it."""
    why = f"{address.shown}: the server answered {status}"
    if trusted and status in {401, 403}:
        return Refusal("is refused by the store: the workspace's credentials are wrong or may not read it", why)
    if trusted and status == 404:
        return Refusal("is not in the store; check the bucket and the path", why)
    return unreached(why)
