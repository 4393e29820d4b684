"""The control API put together: one table of routes, three gates before them. The daemon serves what `make_app` makes.

Handlers are thin: they decode, call the engine, which answers at once, and encode. What was set in motion is seen by
asking for `status` again, or by following events.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from pilotlight.api import services, streams
from pilotlight.api.gates import errors_told, only_loopback, only_with_token
from pilotlight.api.keys import ENDING, ENGINE, STOP, TOKEN

if TYPE_CHECKING:
    from pilotlight.targets.local.engine import Engine

Handler = Callable[[web.Request], Any]

LARGEST_BODY: Final = 64 * 2**20  # a release carries its catalogue along
SERVICE: Final = "/api/v1/namespaces/{namespace}/services/{name}"
ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("GET", "/healthz", services.healthz),
    ("GET", "/api/v1/version", services.version),
    ("GET", "/api/v1/services", services.listed),
    ("GET", "/api/v1/events", streams.events),
    ("POST", "/api/v1/shutdown", services.shutdown),
    ("GET", SERVICE, services.status),
    ("PUT", SERVICE, services.apply),
    ("DELETE", SERVICE, services.delete),
    ("GET", f"{SERVICE}/live", services.live),
    ("GET", f"{SERVICE}/releases", services.releases),
    ("PUT", f"{SERVICE}/scale", services.scale),
    ("PUT", f"{SERVICE}/traffic", services.traffic),
    ("GET", f"{SERVICE}/events", streams.events),
    ("GET", f"{SERVICE}/logs", streams.logs),
)


def make_app(engine: "Engine", token: str, stop: Callable[[float], None]) -> web.Application:
    """`stop` is called with the seconds that replicas have to drain, and must return at once."""
    app = web.Application(
        middlewares=[errors_told, only_loopback, only_with_token], client_max_size=LARGEST_BODY
    )  # the first is the outermost, so that it tells what the others refuse
    app[ENGINE], app[TOKEN], app[STOP], app[ENDING] = engine, token, stop, asyncio.Event()
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler)
    app.on_shutdown.append(_end_streams)
    return app


async def _end_streams(app: web.Application) -> None:
    """Who follows events or logs must not hold the end up."""
    app[ENDING].set()
