"""What a request to the console's own routes must show: that it comes from our page, and both halves of a session.

Pages on other ports of this machine count as the same site for a browser, so SameSite alone keeps none of them out:
where a request comes from is told by Origin and Sec-Fetch-Site, which a page cannot forge.
"""

from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from pilotlight.api.areas import READS
from pilotlight.console.keys import SESSIONS
from pilotlight.errors import Unauthorized

PREFIX: Final = "/console"
HEADER_PROOF: Final = "X-Pilotlight-Console"
COOKIE: Final = "pilotlight_console"
SAME: Final = frozenset({"", "same-origin", "none"})  # none: typed by the user; empty: no browser
POLICY: Final = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'",
    "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'",
    "require-trusted-types-for 'script'", "trusted-types 'none'",  # no text becomes markup, whoever wrote the script
))  # fmt: skip
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def guarded(request: web.Request, response: web.StreamResponse) -> None:
    """Put on every reply below the prefix, refusals included; a signal of the application."""
    if request.path == PREFIX or request.path.startswith(f"{PREFIX}/"):
        response.headers.update(HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")


def from_our_page(method: str, origin: str | None, site: str, host: str) -> bool:
    """Reads may leave Origin out, as browsers do; whatever changes something must name it."""
    if site not in SAME or (origin is None and method not in READS):
        return False
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


async def our_page(request: web.Request) -> None:
    """The gate of the login, which has no session to show yet."""
    shown = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "")
    if not from_our_page(request.method, *shown, request.host):
        raise web.HTTPForbidden(reason="the request comes from another page than the console")


async def signed_in(request: web.Request) -> None:
    await our_page(request)
    if not holds(request):
        raise Unauthorized("nobody is logged in, or not any more", "log in with the API's token")


def holds(request: web.Request) -> bool:
    cookie, proof = request.cookies.get(cookie_name(request.host), ""), request.headers.get(HEADER_PROOF, "")
    return request.app[SESSIONS].holds(cookie, proof, monotonic())


def encrypted(request: web.Request) -> bool:
    """Whether the page came by TLS, here or as far as a proxy before us: its origin has the browser's own word."""
    return request.secure or request.headers.get("Origin", "").startswith("https://")


def cookie_name(host: str) -> str:
    """With the port: browsers keep one jar for all ports of a host, and two platforms may run there."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE
