"""The console's routes: its page and files, the session, the feed, and the API's own routes for whoever is logged in.

`/console/api/v1/…` is `/api/v1/…` behind another gate, so the page can do what `platformctl` can and nothing else.
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
from pilotlight.api.gates import admin, anybody, small_body
from pilotlight.api.keys import BACKING, TOKEN
from pilotlight.console import canaries, feed, files, rollbacks, trying
from pilotlight.console.gate import PREFIX, cookie_name, encrypted, guarded, our_page, signed_in
from pilotlight.console.keys import SESSIONS, WATCH
from pilotlight.console.sessions import LIFE_S, TICKET_S, Sessions
from pilotlight.console.watch import REST_S, Watch
from pilotlight.errors import Unauthorized
from pilotlight.targets.target import ServiceStatus

SESSION: Final = f"{PREFIX}/api/session"
SERVICES: Final = "services"
ADMINISTRATION: Final = ("/api/v1/shutdown",)  # not for a page: a button that ends the page itself


class Login(Struct, frozen=True):
    token: str


async def enter(request: web.Request) -> web.Response:
    shown = json.decode(await small_body(request), type=Login)
    halves = request.app[SESSIONS].enter(shown.token.strip(), request.app[TOKEN], monotonic())
    if halves is None:
        raise Unauthorized("the token is wrong, or the link was used before or is too old", "platformctl console")
    response = web.json_response({"proof": halves.proof, "version": __version__})
    response.set_cookie(
        cookie_name(request.host), halves.cookie, max_age=int(LIFE_S), path=PREFIX, httponly=True, samesite="Strict",
        secure=encrypted(request),
    )  # fmt: skip
    return response


async def about(request: web.Request) -> web.Response:
    return web.json_response({"version": __version__})


async def leave(request: web.Request) -> web.Response:
    name = cookie_name(request.host)
    request.app[SESSIONS].leave(request.cookies.get(name, ""))
    response = web.json_response({})
    response.del_cookie(name, path=PREFIX, httponly=True, samesite="Strict", secure=encrypted(request))
    return response


async def ticket(request: web.Request) -> web.Response:
    """For `platformctl console`, which opens a browser without showing anybody the token."""
    made = request.app[SESSIONS].ticket(monotonic())
    return web.json_response({"ticket": made, "path": PREFIX, "seconds": int(TICKET_S)})


def areas(served: Iterable[Area]) -> tuple[Area, ...]:
    """`served`: those of the API, of which the routes of services are the console's as well."""
    mirrored = tuple(
        replace(route, path=f"{PREFIX}{route.path}")
        for area in served
        if area.name == SERVICES
        for route in area.routes
        if route.path not in ADMINISTRATION
    )
    own = (
        Route("GET", f"{PREFIX}/api/feed", feed.feed),
        Route("GET", SESSION, about),
        Route("DELETE", SESSION, leave),
        Route("POST", trying.PATH, trying.ask),
        *canaries.ROUTES,
        *rollbacks.ROUTES,
    )
    return (
        Area("console files", anybody, files.ROUTES, internal=True),
        Area("console login", our_page, (Route("POST", f"{PREFIX}/api/login", enter),), internal=True),
        Area("console", signed_in, (*own, *mirrored), internal=True),
        Area("console tickets", admin, (Route("POST", "/api/v1/console/tickets", ticket),), internal=True),
    )


def add_to(app: web.Application) -> None:
    """What the routes need, beside the areas."""
    rest_s = max(REST_S, app[BACKING].poll_s / 2)
    app[SESSIONS], app[WATCH] = Sessions(), Watch(partial(_look, app), rest_s)
    app.on_response_prepare.append(guarded)


async def _look(app: web.Application) -> "list[ServiceStatus]":
    return list(await app[BACKING].statuses(None))
