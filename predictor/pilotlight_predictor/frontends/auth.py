"""Authentication and authorization: `authorize(identity, action)` for every route of every protocol.

Two tokens, read from files: the API token for inference and metadata (optional; without it these are open), and the
admin token for control requests. Without an admin token a loopback client is an admin if the settings allow it; never
behind a proxy, whose own address is loopback too, and never without the API token if there is one.
"""

from collections.abc import Mapping
from enum import Enum, auto
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final, NamedTuple

from pilotlight.wire.client_address import client_address
from pilotlight_predictor.config import ServerSettings
from pilotlight_predictor.errors import Forbidden, LoadFailed, Unauthenticated

FORWARDING_HEADERS: Final = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via", "k-proxy-request"
)  # fmt: skip
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class Action(Enum):
    HEALTH = auto()  # always open: probes carry no credentials
    METRICS = auto()
    READ = auto()  # metadata, configuration, statistics
    INFER = auto()
    ADMIN = auto()  # repository, trace, logging, shared memory


class Identity(NamedTuple):
    """Sender of a request. `client`: key of the rate limit, a token or an address; empty if it is unknown."""

    client: str
    api: bool
    admin: bool


class Access:
    """Tokens, read once, and the identity of requests."""

    def __init__(self, settings: ServerSettings) -> None:
        self._api = _read_token(settings.api_token_file, "api_token_file")
        self._admin = _read_token(settings.admin_token_file, "admin_token_file")
        self._loopback = settings.admin_loopback and not self._admin
        self._proxies = [ip_network(text, strict=False) for text in settings.trusted_proxies]
        # Behind an unknown proxy all clients have the proxy's address: they would share one token bucket.
        self._anonymous = settings.behind_proxy and not settings.trusted_proxies

    @property
    def open(self) -> bool:
        """Whether inference needs no token."""
        return not self._api

    def identify(self, headers: Mapping[str, str], peer: str) -> Identity:
        token = _bearer(headers.get("authorization", ""))
        if _same(token, self._admin):
            return Identity("admin token", True, True)
        if _same(token, self._api):
            return Identity("API token", True, self._loopback and _is_local_user(headers, peer))
        admin = self.open and self._loopback and _is_local_user(headers, peer)
        client = "" if self._anonymous else client_address(headers, peer, self._proxies)
        return Identity(client, self.open, admin)


def authorize(identity: Identity, action: Action) -> None:
    """Raise Unauthenticated or Forbidden unless the identity may perform the action."""
    if action is Action.HEALTH:
        return
    if not identity.api:
        raise Unauthenticated("this server needs its API token: send Authorization: Bearer … (--api-token-file)")
    if action is Action.ADMIN and not identity.admin:
        raise Forbidden("this call needs the admin token: send Authorization: Bearer … (--admin-token-file)")


def _is_local_user(headers: Mapping[str, str], peer: str) -> bool:
    """Whether a local process sent the request directly: no proxy in between, and not a browser for a web page."""
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
    """Return the token's bytes; header values are latin-1 text."""
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
