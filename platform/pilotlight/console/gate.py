"""Authorizers of the console: same origin, and a session of cookie and proof.

For browsers, pages on other ports of this machine are the same site, so SameSite does not keep them out; Origin and
Sec-Fetch-Site do, which a page cannot forge.
"""

from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from pilotlight.api.areas import READ_METHODS
from pilotlight.console.keys import SESSIONS
from pilotlight.errors import Unauthorized

PREFIX: Final = "/console"
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
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def add_security_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to every response below the prefix, errors included; a signal handler of aiohttp."""
    if request.path == PREFIX or request.path.startswith(f"{PREFIX}/"):
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")


def is_same_origin(method: str, origin: str | None, site: str, host: str) -> bool:
    """Return whether the request comes from the console's page. Only GET and HEAD may omit Origin, as browsers do."""
    if site not in ALLOWED_SITES or (origin is None and method not in READ_METHODS):
        return False
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


async def require_same_origin(request: web.Request) -> None:
    """Authorizer of the login, which has no session yet."""
    headers = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "")
    if not is_same_origin(request.method, *headers, request.host):
        raise web.HTTPForbidden(reason="the request comes from another page than the console")


async def require_session(request: web.Request) -> None:
    await require_same_origin(request)
    if not has_session(request):
        raise Unauthorized("nobody is logged in, or not any more", "log in with the API's token")


def has_session(request: web.Request) -> bool:
    cookie, proof = request.cookies.get(cookie_name(request.host), ""), request.headers.get(HEADER_PROOF, "")
    return request.app[SESSIONS].authenticate(cookie, proof, monotonic())


def is_https(request: web.Request) -> bool:
    """Return whether the page was loaded by HTTPS, here or at a proxy: the browser states it in Origin."""
    return request.secure or request.headers.get("Origin", "").startswith("https://")


def cookie_name(host: str) -> str:
    """Return the cookie's name with the port: browsers share cookies between the ports of a host."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE
