"""Who calls, and what they may do: one `authorize(identity, action)` for every route of every dialect.

Two tokens exist, both read from files: the API token for inference and metadata (optional; without it these are
open), and the admin token for repository and other control calls. Without an admin token a caller on loopback is an
admin when the server was started by hand; never behind a proxy, whose own address is loopback too, and never without
the API token where there is one.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight_predictor.errors import Forbidden, LoadFailed, Unauthenticated
from pilotlight_predictor.settings import ServerSettings

FORWARDING_HEADERS: Final = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via", "k-proxy-request"
)  # fmt: skip
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class Action(Enum):
    HEALTH = auto()  # open to everybody: probes carry no credentials
    METRICS = auto()
    READ = auto()  # metadata, configuration, statistics
    INFER = auto()
    ADMIN = auto()  # repository, trace, logging, shared memory


class Identity(NamedTuple):
    """`client` keys rate limits: which token, else an address; empty for one who cannot be told from others."""

    client: str
    api: bool
    admin: bool


class Access:
    """Reads the tokens once and tells the identity behind a call."""

    def __init__(self, settings: ServerSettings) -> None:
        self._api = _read_token(settings.api_token_file, "api_token_file")
        self._admin = _read_token(settings.admin_token_file, "admin_token_file")
        self._loopback = settings.admin_loopback and not self._admin
        self._proxies = [ip_network(text, strict=False) for text in settings.trusted_proxies]
        # Behind a proxy nobody named, all clients have the proxy's address: a bucket for it would be one for all.
        self._anonymous = settings.behind_proxy and not settings.trusted_proxies

    @property
    def open(self) -> bool:
        """Nobody needs a token for inference."""
        return not self._api

    def identify(self, headers: Mapping[str, str], peer: str) -> Identity:
        token = _bearer(headers.get("authorization", ""))
        if _same(token, self._admin):
            return Identity("admin token", True, True)
        if _same(token, self._api):
            return Identity("API token", True, self._loopback and _by_hand(headers, peer))
        admin = self.open and self._loopback and _by_hand(headers, peer)
        client = "" if self._anonymous else client_address(headers, peer, self._proxies)
        return Identity(client, self.open, admin)


def authorize(identity: Identity, action: Action) -> None:
    """Raises unless the identity may do it."""
    if action is Action.HEALTH:
        return
    if not identity.api:
        raise Unauthenticated("this server needs its API token: send Authorization: Bearer … (--api-token-file)")
    if action is Action.ADMIN and not identity.admin:
        raise Forbidden("this call needs the admin token: send Authorization: Bearer … (--admin-token-file)")


def client_address(headers: Mapping[str, str], peer: str, proxies: Sequence[IPv4Network | IPv6Network]) -> str:
    """The peer, or what a trusted proxy says is behind it.

    What anybody else says is not believed: a client that could name itself anew in each request had no limit.
    """
    address, hops = peer, headers.get("x-forwarded-for", "").split(",")
    while hops and _within(address, proxies):
        address = _without_port(hops.pop().strip()) or address
    return address


def _without_port(hop: str) -> str:
    """Some proxies add the port, which differs with each connection of one client."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def _within(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


def _by_hand(headers: Mapping[str, str], peer: str) -> bool:
    """A person or script on this machine: no proxy in between, and no web page that made the browser call."""
    if not _is_loopback(peer) or "origin" in headers or any(name in headers for name in FORWARDING_HEADERS):
        return False
    host = headers.get("host", "")
    return (host if host.endswith("]") else host.rpartition(":")[0] or host).lower() in LOCAL_HOSTS


@lru_cache(1024)
def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False


def _bearer(header: str) -> bytes:
    """The token's bytes; header values are text of one character per byte."""
    scheme, _, token = header.partition(" ")
    return token.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def _same(token: bytes, secret: bytes) -> bool:
    if not token or not secret:
        return False
    from hmac import compare_digest

    return compare_digest(token, secret)


def _read_token(filename: str, field: str) -> bytes:
    if not filename:
        return b""
    try:
        token = Path(filename).read_bytes().strip()
    except OSError as error:
        raise LoadFailed(f"{field} = {filename}, must be a readable file: {error.strerror}") from None
    if not token:
        raise LoadFailed(f"{field} = {filename}, must not be empty")
    return token
