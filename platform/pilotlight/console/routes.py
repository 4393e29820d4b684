"""Routes of the console: its page and files, the session, the feed, and the API's routes for a logged-in browser.

`/console/api/v1/…` is `/api/v1/…` with another authorizer, so the page can do what `platformctl` can, and no more.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight import __version__
from pilotlight.api.areas import Area, Route
from pilotlight.api.gates import allow_anonymous, read_small_body, require_admin
from pilotlight.api.keys import BACKEND, TOKEN
from pilotlight.console import canaries, feed, files, rollbacks, trying
from pilotlight.console.gate import (
    PREFIX,
    add_security_headers,
    cookie_name,
    is_https,
    require_same_origin,
    require_session,
)
from pilotlight.console.keys import SESSIONS, STATUS_CACHE
from pilotlight.console.sessions import SESSION_TTL_S, TICKET_TTL_S, Sessions
from pilotlight.console.watch import MIN_INTERVAL_S, StatusCache
from pilotlight.errors import Unauthorized

SESSION: Final = f"{PREFIX}/api/session"
SERVICES: Final = "services"
ADMINISTRATION: Final = ("/api/v1/shutdown",)  # not for a page: a button that ends the page itself


class Login(Struct, frozen=True):
    token: str


async def login(request: web.Request) -> web.Response:
    body = json.decode(await read_small_body(request), type=Login)
    session = request.app[SESSIONS].log_in(body.token.strip(), request.app[TOKEN], monotonic())
    if session is None:
        raise Unauthorized("the token is wrong, or the link was used before or is too old", "platformctl console")
    response = web.json_response({"proof": session.proof, "version": __version__})
    response.set_cookie(
        cookie_name(request.host), session.cookie, max_age=int(SESSION_TTL_S), path=PREFIX, httponly=True,
        samesite="Strict", secure=is_https(request),
    )  # fmt: skip
    return response


async def get_session(request: web.Request) -> web.Response:
    return web.json_response({"version": __version__})


async def logout(request: web.Request) -> web.Response:
    name = cookie_name(request.host)
    request.app[SESSIONS].log_out(request.cookies.get(name, ""))
    response = web.json_response({})
    response.del_cookie(name, path=PREFIX, httponly=True, samesite="Strict", secure=is_https(request))
    return response


async def create_ticket(request: web.Request) -> web.Response:
    """Issue a ticket for `platformctl console`, which opens a browser without exposing the token."""
    value = request.app[SESSIONS].issue_ticket(monotonic())
    return web.json_response({"ticket": value, "path": PREFIX, "seconds": int(TICKET_TTL_S)})


def areas(served: Iterable[Area]) -> tuple[Area, ...]:
    """Return the console's areas. Routes of services among the API's areas, `served`, are mirrored."""
    mirrored = tuple(
        replace(route, path=f"{PREFIX}{route.path}")
        for area in served
        if area.name == SERVICES
        for route in area.routes
        if route.path not in ADMINISTRATION
    )
    own = (
        Route("GET", f"{PREFIX}/api/feed", feed.feed),
        Route("GET", SESSION, get_session),
        Route("DELETE", SESSION, logout),
        Route("POST", trying.PATH, trying.send_request),
        *canaries.ROUTES,
        *rollbacks.ROUTES,
    )
    return (
        Area("console files", allow_anonymous, files.ROUTES, internal=True),
        Area("console login", require_same_origin, (Route("POST", f"{PREFIX}/api/login", login),), internal=True),
        Area("console", require_session, (*own, *mirrored), internal=True),
        Area(
            "console tickets", require_admin, (Route("POST", "/api/v1/console/tickets", create_ticket),), internal=True
        ),
    )


def setup(app: web.Application) -> None:
    """Add sessions, the status cache and security headers to the application."""
    min_interval_s = max(MIN_INTERVAL_S, app[BACKEND].poll_s / 2)
    app[SESSIONS], app[STATUS_CACHE] = Sessions(), StatusCache(partial(app[BACKEND].statuses, None), min_interval_s)
    app.on_response_prepare.append(add_security_headers)
