"""Who calls, and what they may do: one `authorize(identity, action)` for every route of every dialect.

Two tokens exist, both read from files: the API token for inference and metadata (optional; without it these are
open), and the admin token for repository and other control calls. Without an admin token a caller on loopback is an
admin when the server was started by hand; never behind a proxy, whose own address is loopback too.
"""

import hmac
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight_predictor.errors import Forbidden, LoadFailed, Unauthenticated
from pilotlight_predictor.settings import ServerSettings

FORWARDING_HEADERS: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via", "k-proxy-request")
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class Action(Enum):
    HEALTH = auto()  # open to everybody: probes carry no credentials
    METRICS = auto()
    READ = auto()  # metadata, configuration, statistics
    INFER = auto()
    ADMIN = auto()  # repository, trace, logging, shared memory


class Identity(NamedTuple):
    """`client` keys rate limits: a token's subject, an address, or nobody ("")."""

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

    @property
    def open(self) -> bool:
        """Nobody needs a token for inference."""
        return not self._api

    def identify(self, headers: Mapping[str, str], peer: str) -> Identity:
        token = _bearer(headers.get("authorization", ""))
        admin = bool(token and self._admin) and hmac.compare_digest(token, self._admin)
        api = admin or not self._api or (bool(token) and hmac.compare_digest(token, self._api))
        if self._loopback and not admin:
            admin = _by_hand(headers, peer)
        subject = "token" if token and (api or admin) and (self._api or self._admin) else ""
        return Identity(subject or client_address(headers, peer, self._proxies), api, admin)


def authorize(identity: Identity, action: Action) -> None:
    """Raises unless the identity may do it."""
    if action is Action.HEALTH:
        return
    if action is Action.ADMIN:
        if not identity.admin:
            raise Forbidden("this call needs the admin token: send Authorization: Bearer … (--admin-token-file)")
    elif not identity.api and not identity.admin:
        raise Unauthenticated("this server needs its API token: send Authorization: Bearer … (--api-token-file)")


def client_address(headers: Mapping[str, str], peer: str, proxies: Sequence[IPv4Network | IPv6Network]) -> str:
    """The peer, or what a trusted proxy says is behind it; nobody where an untrusted proxy forwards."""
    forwarded = headers.get("x-forwarded-for", "")
    if not forwarded:
        return peer
    hops = [hop.strip() for hop in forwarded.split(",")]
    address = peer
    while _within(address, proxies):
        if not hops:
            return address
        address = hops.pop()
    return address if address != peer else ""


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
    return (host if host.endswith("]") else host.rpartition(":")[0] or host) in LOCAL_HOSTS


@lru_cache(1024)
def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False


def _bearer(header: str) -> bytes:
    scheme, _, token = header.partition(" ")
    return token.strip().encode() if scheme.lower() == "bearer" else b""


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
