"""The control API put together: one table of areas, each with its routes and the gate before them.

Handlers are thin: they decode, call what stands behind them, which answers at once, and encode. What was set in motion
is seen by asking for `status` again, or by following events.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web

from pilotlight import console
from pilotlight.api import canaries, documents, scraping, services, streams
from pilotlight.api.areas import READS, Area, Gate, Route
from pilotlight.api.backing import EngineBacking
from pilotlight.api.gates import admin, anybody, errors_told, only_loopback, through_its_gate
from pilotlight.api.keys import BACKING, ENDING, ENGINE, GATES, SERVED, STOP, TOKEN
from pilotlight.microservices.api import table as microservices
from pilotlight.microservices.api.desk import DESK, opened

if TYPE_CHECKING:
    from pilotlight.api.backing import Backing
    from pilotlight.microservices.api.desk import Desk
    from pilotlight.targets.local.engine import Engine

LARGEST_BODY: Final = 64 * 2**20  # a release carries its catalogue along
HEALTH: Final = Area("health", anybody, (Route("GET", "/healthz", services.healthz, "Whether it answers."),))
METRICS: Final = Area("metrics", anybody, (scraping.METRICS,))
AREAS: Final[tuple[Area, ...]] = (
    HEALTH,
    METRICS,
    Area("services", admin, (services.SHUTDOWN, *services.ROUTES, *streams.ROUTES, *canaries.ROUTES)),
    Area("scraping", admin, scraping.ROUTES, internal=True),
)
# Of an API that stands beside its target: it can neither end it nor say where its replicas are scraped.
TARGET_AREAS: Final = (
    HEALTH,
    METRICS,
    Area("services", admin, (*services.ROUTES, *streams.ROUTES, *canaries.ROUTES)),
)


def make_app(
    engine: "Engine", token: str, stop: Callable[[float], None], desk: "Desk | None" = None
) -> web.Application:
    """In the control process. `stop` is called with the seconds that replicas have to drain, and must return at once.
    Without a `desk` there are no microservices."""
    app = _assembled(AREAS, EngineBacking(engine), token, desk, loopback=True)
    app[ENGINE], app[STOP] = engine, stop
    return app


def make_target_app(backing: "Backing", token: str, desk: "Desk", *, loopback: bool) -> web.Application:
    """On its own, over any target, which it does not end. `loopback`: only callers of this machine are let in."""
    return _assembled(TARGET_AREAS, backing, token, desk, loopback=loopback)


def _assembled(
    areas: tuple[Area, ...], backing: "Backing", token: str, desk: "Desk | None", *, loopback: bool
) -> web.Application:
    gates = [errors_told, *([only_loopback] if loopback else []), through_its_gate]
    app = web.Application(
        middlewares=gates, client_max_size=LARGEST_BODY
    )  # the first is the outermost, so that it tells what the others refuse
    app[BACKING], app[TOKEN], app[ENDING] = backing, token, asyncio.Event()
    app[SERVED] = (*areas, documents.AREA, *console.areas(areas), *(microservices.AREAS if desk else ()))
    app[GATES] = add_routes(app, app[SERVED])
    if desk is not None:
        app[DESK] = desk
        app.cleanup_ctx.append(opened)
    console.add_to(app)
    app.on_shutdown.append(_end_streams)
    return app


def add_routes(app: web.Application, areas: tuple[Area, ...]) -> dict[object, Gate]:
    """The gate of each resource; a path belongs to one area. HEAD goes where GET does, through the same gate."""
    gates: dict[object, Gate] = {}
    for area in areas:
        for route in area.routes:
            for method in READS if route.method == "GET" else (route.method,):
                gates[app.router.add_route(method, route.path, route.handler).resource] = area.gate
    return gates


async def _end_streams(app: web.Application) -> None:
    """Who follows events or logs must not hold the end up."""
    app[ENDING].set()
