"""Login to the console: sessions and tickets in memory, same-origin checks and security headers.

A session has two secrets, and every request needs both: a cookie, which no script can read, and a proof held by the
page, which no other page can read. The cookie alone is not enough, since browsers send it to every port of the host.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from aiohttp import web

from pilotlight.api.route_types import READ_METHODS
from pilotlight.errors import Unauthorized

if TYPE_CHECKING:
    from pilotlight.console.status_cache import StatusCache

SESSION_TTL_S: Final = 12 * 3600.0
IDLE_TIMEOUT_S: Final = 2 * 3600.0
TICKET_TTL_S: Final = 300.0
MAX_ENTRIES: Final = 64  # sessions, and tickets; the oldest is evicted
PREFIX: Final = "/console"
WITH_SECRETS: Final = ("/live", "/releases", "/manifest")  # routes of which the response may hold Secrets
QUERY: Final = "/query_range"  # route that reads, though by POST
HEADER_PROOF: Final = "X-Pilotlight-Console"
COOKIE: Final = "pilotlight_console"
ALLOWED_SITES: Final = frozenset({"", "same-origin", "none"})  # none: typed by the user; empty: no browser
POLICY: Final = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
    "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'",  # no text becomes markup
))  # fmt: skip
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(slots=True)
class Session:
    proof: bytes
    opened: float
    used: float
    read_only: bool = False

    def is_active(self, now: float) -> bool:
        return now - self.opened < SESSION_TTL_S and now - self.used < IDLE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class SessionSecrets:
    """Secrets of a new session, returned once; only their digests are stored."""

    cookie: str
    proof: str
    read_only: bool


@dataclass(slots=True)
class Sessions:
    """Open sessions and tickets; `now` is monotonic. They do not survive the process."""

    _open: dict[bytes, Session] = field(default_factory=dict)
    _tickets: dict[bytes, tuple[float, bool]] = field(default_factory=dict)  # when issued, read-only

    def issue_ticket(self, now: float, *, read_only: bool = False) -> str:
        """Return a one-time login ticket, for a link that other users may see in the process list."""
        ticket = secrets.token_urlsafe(32)
        _evict_oldest(self._tickets)
        self._tickets[_digest(ticket)] = now, read_only
        return ticket

    def log_in(self, credential: str, token: str, now: float) -> SessionSecrets | None:
        """Open a session with the API's token or with a ticket, which it uses up; None: wrong credential."""
        issued, read_only = self._tickets.pop(_digest(credential), (float("-inf"), False))
        if now - issued >= TICKET_TTL_S and not hmac.compare_digest(credential.encode(), token.encode()):
            return None
        session = SessionSecrets(secrets.token_urlsafe(32), secrets.token_urlsafe(32), read_only)
        self._open = {digest: each for digest, each in self._open.items() if each.is_active(now)}
        _evict_oldest(self._open)
        self._open[_digest(session.cookie)] = Session(_digest(session.proof), now, now, read_only)
        return session

    def authenticate(self, cookie: str, proof: str, now: float) -> Session | None:
        """Return the active session that both secrets belong to, and reset its idle timeout."""
        session = self._open.get(_digest(cookie))
        if session is None or not hmac.compare_digest(session.proof, _digest(proof)) or not session.is_active(now):
            return None
        session.used = now
        return session

    def log_out(self, cookie: str) -> None:
        self._open.pop(_digest(cookie), None)


def _evict_oldest(entries: dict[bytes, Session] | dict[bytes, tuple[float, bool]]) -> None:
    while len(entries) >= MAX_ENTRIES:
        entries.pop(next(iter(entries)))


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogateescape")).digest()


SESSIONS: Final[web.AppKey[Sessions]] = web.AppKey("sessions")
STATUS_CACHE: "Final[web.AppKey[StatusCache]]" = web.AppKey("status_cache")


async def add_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to every response below the prefix, errors included; a signal handler of aiohttp.

    No response of this origin may pass for a script: a replica's metrics are text of its model.
    """
    response.headers["X-Content-Type-Options"] = "nosniff"
    if request.path == PREFIX or request.path.startswith(f"{PREFIX}/"):
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")


def is_same_origin(method: str, origin: str | None, site: str, host: str) -> bool:
    """Return whether the request comes from the console's page. Only GET and HEAD may omit Origin, as browsers do.

    SameSite does not exclude pages on other ports of this machine; Origin and Sec-Fetch-Site cannot be forged.
    """
    if site not in ALLOWED_SITES or (origin is None and method not in READ_METHODS):
        return False
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


async def require_same_origin(request: web.Request) -> None:
    """Authorizer of the login, which has no session yet."""
    headers = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "")
    if not is_same_origin(request.method, *headers, request.host):
        raise web.HTTPForbidden(reason="the request does not come from the console's page")


async def require_session(request: web.Request) -> None:
    await require_same_origin(request)
    if find_session(request) is None:
        raise Unauthorized("there is no session, or it has expired", "log in with the API's token")


async def require_change(request: web.Request) -> None:
    """Authorizer of routes of services: a read-only session changes nothing and gets no manifest, which has Secrets."""
    await require_session(request)
    session, resource = find_session(request), request.match_info.route.resource
    path = resource.canonical if resource else ""  # the route's, since a service may be called like its end
    reads = path.endswith(QUERY) or (request.method in READ_METHODS and not path.endswith(WITH_SECRETS))
    if not reads and (session is None or session.read_only):
        raise web.HTTPForbidden(reason="this session is read-only")


def find_session(request: web.Request) -> Session | None:
    cookie, proof = request.cookies.get(cookie_name(request.host), ""), request.headers.get(HEADER_PROOF, "")
    return request.app[SESSIONS].authenticate(cookie, proof, monotonic())


def is_https(request: web.Request) -> bool:
    """Return whether the page was loaded by HTTPS, here or at a proxy: the browser states it in Origin."""
    return request.secure or request.headers.get("Origin", "").startswith("https://")


def cookie_name(host: str) -> str:
    """Return the cookie's name with the port: browsers share cookies between the ports of a host."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE
