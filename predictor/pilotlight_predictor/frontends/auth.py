"""Authentication and authorization: `authorize(identity, action)` for every route of every protocol.

Two tokens, read from files: the API token for inference and metadata (optional; without it these are open), and the
admin token for control requests. Beside or instead of the API token, a file may hold the access rules of the service:
tokens, JWTs and a rate limit, enforced by the gateway's code (wire/service_access.py); health and metrics stay open.
Without an admin token a loopback client of the server's own user, or root, is an admin if the settings allow it; never
behind a proxy, whose own address is loopback too, and never without the API token if there is one.
"""

import os
from collections.abc import Mapping
from enum import Enum, auto
from ipaddress import ip_network
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Final, NamedTuple

from pilotlight.wire.client_address import client_address, is_local_name, is_loopback
from pilotlight_predictor.config import ServerSettings
from pilotlight_predictor.errors import Forbidden, LoadFailed, NotReady, PredictorError, RateLimited, Unauthenticated
from pilotlight_predictor.frontends.peer import Peer, local_owner
from pilotlight_predictor.observability.logs import log

if TYPE_CHECKING:
    from pilotlight.wire.service_access import Refusal

FORWARDING_HEADERS: Final = (
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via", "k-proxy-request"
)  # fmt: skip
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
OWN_PAGES: Final = frozenset({"", "none", "same-origin"})  # Sec-Fetch-Site of programs, the address bar, our pages
REALM: Final = "this service"


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


class ServiceRules:
    """Access rules of the service, in a file that is read again when it changes (--access-file)."""

    def __init__(self, filename: str) -> None:
        from pilotlight.wire import service_access  # few servers need it
        from pilotlight.wire.access_file import AccessFile
        from pilotlight.wire.token_bucket import TokenBuckets

        self._wire, self._buckets = service_access, TokenBuckets()
        try:
            self._file = AccessFile(filename, lambda problem: log("access", problem, level="ERROR"), monotonic())
        except OSError as error:
            raise LoadFailed(f"access_file = {filename}, must be a readable file: {error.strerror}") from None
        except ValueError as error:
            raise LoadFailed(f"access_file = {filename} {error}") from None

    def authenticate(self, headers: Mapping[str, str]) -> str:
        """Return the client's subject; empty: the rules ask for none. Raises Unauthenticated, Forbidden, NotReady."""
        access = self._file.rules(monotonic()).access
        subject = self._wire.authenticate(access, REALM, headers, time())
        if isinstance(subject, str):
            return subject
        raise _error(subject)

    def check_rate(self, client: str) -> None:
        """Raise RateLimited. A client without a name is not limited: it would share its bucket with all others."""
        now = monotonic()
        rate = self._file.rules(now).rate
        if rate is not None and client and (refusal := self._wire.check_rate(self._buckets, rate, client, REALM, now)):
            raise _error(refusal)


class Access:
    """Tokens, read once, the rules of the service, and the identity of requests."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._api = _read_token(settings.api_token_file, "api_token_file")
        self.rules = ServiceRules(settings.access_file) if settings.access_file else None
        self._admin = _read_token(settings.admin_token_file, "admin_token_file")
        self._loopback = settings.admin_loopback and not self._admin
        # Names of Host and Origin that are permitted; None: not checked. Behind Knative's sidecar all is loopback.
        on_loopback = is_local_name(settings.host) and not settings.behind_proxy
        self.own_hosts = frozenset(name.lower() for name in settings.allowed_hosts) if on_loopback else None
        self._proxies = [ip_network(text, strict=False) for text in settings.trusted_proxies]
        # Behind an unknown proxy all clients have the proxy's address: they would share one token bucket.
        self._anonymous = settings.behind_proxy and not settings.trusted_proxies

    @property
    def open(self) -> bool:
        """Whether inference needs neither a token nor a look at the rules of the service."""
        return not self._api and self.rules is None

    def identify(self, headers: Mapping[str, str], peer: str, action: Action) -> Identity:
        """Return who sent a request. Raises the refusal of the service's rules, if it has any."""
        token, client, api = _bearer(headers.get("authorization", "")), "", not self._api
        if _same(token, self._admin):
            return Identity("admin token", True, True)
        if _same(token, self._api):
            client, api = "API token", True
        elif self.rules is not None and action is not Action.METRICS:
            client, api = self.rules.authenticate(headers), True
        admin = action is Action.ADMIN and api and self._loopback and _is_local_user(headers, peer)
        if not client and not self._anonymous:
            client = client_address(headers, peer, self._proxies)
        return Identity(client, api, admin)


def authorize(identity: Identity, action: Action) -> None:
    """Raise Unauthenticated or Forbidden unless the identity may perform the action."""
    if action is Action.HEALTH:
        return
    if not identity.api:
        raise Unauthenticated("this server requires its API token: send Authorization: Bearer … (--api-token-file)")
    if action is Action.ADMIN and not identity.admin:
        raise Forbidden("this request requires the admin token: send Authorization: Bearer … (--admin-token-file)")


def _is_local_user(headers: Mapping[str, str], peer: str) -> bool:
    """Whether a process of the server's user, or of root, sent the request itself: no proxy, no web page."""
    if not is_loopback(peer) or "origin" in headers or any(name in headers for name in FORWARDING_HEADERS):
        return False
    if headers.get("sec-fetch-site", "") not in OWN_PAGES or not _is_local_host(headers.get("host", "")):
        return False
    owner = local_owner(peer) if isinstance(peer, Peer) else None
    return owner is None or owner in {0, os.geteuid()}  # None: the system does not show it


def _is_local_host(host: str) -> bool:
    name, colon, port = ("", "", "") if host.endswith("]") else host.rpartition(":")
    if colon and not (port.isascii() and port.isdigit()):
        return False
    return (name if colon else host).lower() in LOCAL_HOSTS


def _error(refusal: "Refusal") -> PredictorError:
    if refusal.status == 429:
        return RateLimited(refusal.message, int(refusal.headers["Retry-After"]))
    return {401: Unauthenticated, 403: Forbidden}.get(refusal.status, NotReady)(refusal.message)


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
