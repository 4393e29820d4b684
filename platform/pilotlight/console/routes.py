"""Routes of the console: its page and static files, the session, the feed, and the API's routes for a browser.

`/console/api/v1/…` is `/api/v1/…` with another authorizer, so the page can do what `platformctl` can, and no more.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight import __version__
from pilotlight.api.middlewares import allow_anonymous, read_small_body, require_admin
from pilotlight.api.route_types import Area, Route
from pilotlight.api.services import flag_parameter
from pilotlight.api.target_adapters import BACKEND, TOKEN
from pilotlight.console import actions, live_feed, manifest_routes, try_model, what_if
from pilotlight.console.sessions import (
    PREFIX,
    SESSION_TTL_S,
    SESSIONS,
    STATUS_CACHE,
    TICKET_TTL_S,
    Sessions,
    add_security_headers,
    cookie_name,
    find_session,
    is_https,
    require_change,
    require_same_origin,
    require_session,
)
from pilotlight.console.status_cache import MIN_INTERVAL_S, StatusCache
from pilotlight.errors import Unauthorized

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
SESSION: Final = f"{PREFIX}/api/session"
SERVICES: Final = "services"
NOT_MIRRORED: Final = ("/api/v1/shutdown",)  # it would end the page itself


async def page(request: web.Request) -> web.StreamResponse:
    return _file("index.html")


async def root(request: web.Request) -> web.StreamResponse:
    """Lead a browser to the console; `/` does not exist for other clients."""
    if "text/html" in request.headers.get("Accept", ""):
        return web.Response(status=302, headers={"Location": PREFIX})
    await require_admin(request)
    raise web.HTTPNotFound


async def file(request: web.Request) -> web.StreamResponse:
    return _file(request.match_info["file"])


def _file(name: str) -> web.FileResponse:
    """Return a static file. Browsers revalidate it each time, so an update shows at once."""
    path = FOLDER / name
    if path.suffix not in TYPES or path.parent != FOLDER or not path.is_file():
        raise web.HTTPNotFound
    return web.FileResponse(path, headers={"Content-Type": TYPES[path.suffix], "Cache-Control": "no-cache"})


class Login(Struct, frozen=True):
    token: str


async def login(request: web.Request) -> web.Response:
    body = json.decode(await read_small_body(request), type=Login)
    session = request.app[SESSIONS].log_in(body.token.strip(), request.app[TOKEN], monotonic())
    if session is None:
        raise Unauthorized("the token is wrong, or the link was used before or has expired", "platformctl console")
    response = web.json_response({"proof": session.proof, "version": __version__, "read_only": session.read_only})
    response.set_cookie(
        cookie_name(request.host), session.cookie, max_age=int(SESSION_TTL_S), path=PREFIX, httponly=True,
        samesite="Strict", secure=is_https(request),
    )  # fmt: skip
    return response


async def get_session(request: web.Request) -> web.Response:
    session = find_session(request)
    return web.json_response({"version": __version__, "read_only": session is None or session.read_only})


async def logout(request: web.Request) -> web.Response:
    name = cookie_name(request.host)
    request.app[SESSIONS].log_out(request.cookies.get(name, ""))
    response = web.json_response({})
    response.del_cookie(name, path=PREFIX, httponly=True, samesite="Strict", secure=is_https(request))
    return response


async def create_ticket(request: web.Request) -> web.Response:
    """Issue a ticket for `platformctl console`, which opens a browser without exposing the token."""
    value = request.app[SESSIONS].issue_ticket(monotonic(), read_only=flag_parameter(request, "read_only"))
    return web.json_response({"ticket": value, "path": PREFIX, "seconds": int(TICKET_TTL_S)})


def areas(served: Iterable[Area]) -> tuple[Area, ...]:
    """Return the console's areas. Routes of services among the API's areas, `served`, are mirrored."""
    mirrored = tuple(
        replace(route, path=f"{PREFIX}{route.path}")
        for area in served
        if area.name == SERVICES
        for route in area.routes
        if route.path not in NOT_MIRRORED
    )
    reading = (
        Route("GET", f"{PREFIX}/api/feed", live_feed.feed),
        Route("GET", SESSION, get_session),
        Route("DELETE", SESSION, logout),
        Route("POST", try_model.PATH, try_model.send_request),
        *what_if.ROUTES,
    )
    files = (
        Route("GET", "/", root),
        Route("GET", "/console", page),
        Route("GET", "/console/", page),
        Route("GET", r"/console/static/{file:[a-z_]+\.[a-z]+}", file),
    )
    tickets = Route("POST", "/api/v1/console/tickets", create_ticket)
    return (
        Area("console files", allow_anonymous, files, internal=True),
        Area("console login", require_same_origin, (Route("POST", f"{PREFIX}/api/login", login),), internal=True),
        Area("console reading", require_session, reading, internal=True),
        Area("console", require_change, (*actions.ROUTES, *manifest_routes.ROUTES, *mirrored), internal=True),
        Area("console tickets", require_admin, (tickets,), internal=True),
    )


def setup(app: web.Application) -> None:
    """Add sessions, the status cache and security headers to the application."""
    backend = app[BACKEND]
    cache = StatusCache(lambda: backend.call(lambda target: target.list(None)), max(MIN_INTERVAL_S, backend.poll_s / 2))
    app[SESSIONS], app[STATUS_CACHE] = Sessions(), cache
    app.cleanup_ctx.append(manifest_routes.thread_lifespan)
    app.on_response_prepare.append(add_security_headers)
