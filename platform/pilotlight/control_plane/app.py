"""Composition of the control API: a table of areas, each with its routes and their authorizer.

Handlers decode, call the backend, which returns without waiting for the rollout, and encode. Clients follow the
progress by polling `status` or by streaming events.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiohttp import web, web_response

from pilotlight import console
from pilotlight.api import history, metrics, openapi, services, streams
from pilotlight.api.middlewares import (
    allow_anonymous,
    authorization_middleware,
    authorize_metrics,
    error_middleware,
    loopback_middleware,
    require_admin,
)
from pilotlight.api.route_types import READ_METHODS, Area, Authorizer, Route
from pilotlight.api.target_adapters import (
    ALL_AREAS,
    AUTHORIZERS,
    BACKEND,
    ENGINE,
    METRICS_TOKEN,
    REQUEST_SCHEMAS,
    SHUTTING_DOWN,
    STOP,
    TOKEN,
    Backend,
    EngineBackend,
    TargetBackend,
)
from pilotlight.microservices.api import routes
from pilotlight.microservices.api.api_context import CONTEXT, ApiContext, context_lifespan
from pilotlight.microservices.registry import model_kinds

if TYPE_CHECKING:
    from pilotlight.targets.local.control.service_operations import Engine

MAX_BODY_BYTES: Final = 64 * 2**20  # a release carries its catalogue along
HEALTH: Final = Area("health", allow_anonymous, (Route("GET", "/healthz", services.healthz, "Liveness."),))
METRICS: Final = Area("metrics", authorize_metrics, (metrics.METRICS,))
SERVICE_ROUTES: Final = (*services.ROUTES, *streams.ROUTES, *services.CANARY_ROUTES)
AREAS: Final[tuple[Area, ...]] = (
    HEALTH,
    METRICS,
    Area(
        "services",
        require_admin,
        (services.SHUTDOWN, services.SECRET, services.CHECKS, *history.ROUTES, *SERVICE_ROUTES),
    ),
    Area("scraping", require_admin, metrics.ROUTES, internal=True),
    Area("replicas", authorize_metrics, metrics.REPLICA_ROUTES, internal=True),
)
# A standalone API can neither shut down or check its target, set secrets nor list the scrape addresses of its replicas,
# and it records no history.
TARGET_AREAS: Final = (HEALTH, METRICS, Area("services", require_admin, SERVICE_ROUTES))


def make_app(
    engine: "Engine", token: str, stop: Callable[[float], None], context: ApiContext | None = None
) -> web.Application:
    """Return the application of the control process.

    `stop` is called with the drain time in seconds and must not block. Without a `context` there are no microservices.
    """
    app = _build_app(AREAS, EngineBackend(engine), token, context, loopback=True)
    app[ENGINE], app[STOP] = engine, stop
    return app


def make_target_app(
    backend: TargetBackend, token: str, context: ApiContext, *, loopback: bool, metrics_token: str = ""
) -> web.Application:
    """Return the standalone application over any target.

    `loopback`: accept requests to loopback hosts only, and those for metrics without a token.
    """
    app = _build_app(TARGET_AREAS, backend, token, context, loopback=loopback)
    if not loopback:
        app[METRICS_TOKEN] = metrics_token
    return app


def _build_app(
    areas: tuple[Area, ...], backend: Backend, token: str, context: ApiContext | None, *, loopback: bool
) -> web.Application:
    # The constant, since errors of aiohttp's parser pass no middleware: strangers need not know its version.
    web_response.SERVER_SOFTWARE = "pilotlight"  # type: ignore[attr-defined]
    # the first is the outermost: it also turns the errors of the others into responses
    middlewares = [error_middleware, *([loopback_middleware] if loopback else []), authorization_middleware]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    app[REQUEST_SCHEMAS] = model_kinds.schemas
    app[BACKEND], app[TOKEN], app[SHUTTING_DOWN] = backend, token, asyncio.Event()
    app[ALL_AREAS] = (*areas, openapi.AREA, *console.areas(areas), *(routes.AREAS if context else ()))
    app[AUTHORIZERS] = add_routes(app, app[ALL_AREAS])
    if context is not None:
        app[CONTEXT] = context
        app.cleanup_ctx.append(context_lifespan)
    console.setup(app)
    app.on_shutdown.append(_end_streams)
    return app


def add_routes(app: web.Application, areas: tuple[Area, ...]) -> dict[object, Authorizer]:
    """Register all routes and return the authorizer of each resource. HEAD is served like GET.

    A path belongs to one area.
    """
    authorizers: dict[object, Authorizer] = {}
    for area in areas:
        for route in area.routes:
            for method in READ_METHODS if route.method == "GET" else (route.method,):
                authorizers[app.router.add_route(method, route.path, route.handler).resource] = area.authorizer
    return authorizers


async def _end_streams(app: web.Application) -> None:
    """End event and log streams, which would delay the shutdown."""
    app[SHUTTING_DOWN].set()
