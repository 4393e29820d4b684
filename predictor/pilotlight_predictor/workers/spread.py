"""Which calls concern all workers: their rows of a dialect's table get a handler that asks everybody.

The table itself stays as it is; a worker that is asked by the parent answers by the unchanged rows.
"""

from collections.abc import Awaitable
from typing import Final

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.dispatch import Dialect, Handler, Route
from pilotlight_predictor.errors import Unsupported
from pilotlight_predictor.server import Server
from pilotlight_predictor.workers.link import Link

MERGED: Final = {
    "/metrics": "metrics",
    "/status": "status",
    "/v2/models/stats": "statistics",
    "/v2/models/{model}/stats": "statistics",
    "/v2/models/{model}/versions/{version}/stats": "statistics",
    "/v2/repository/index": "index",
    "/v2/repository/{repository}/index": "index",
}
CONTROL: Final = ("load", "unload", "park", "wake")  # which take the time they take


def spread(dialects: tuple[Dialect, ...], link: Link) -> tuple[Dialect, ...]:
    return tuple(
        dialect._replace(routes=tuple(_spread(route, link) for route in dialect.routes)) for dialect in dialects
    )


def how(route: Route) -> str:
    """How the answers become one; empty for what any one worker can answer alone."""
    if "sharedmemory" in route.pattern:
        return "refused"
    if route.pattern in MERGED:
        return MERGED[route.pattern]
    if route.action is not Action.ADMIN:
        return ""
    last = route.pattern.rsplit("/", 1)[-1]
    return last if last in CONTROL else "all"


def _spread(route: Route, link: Link) -> Route:
    kind = how(route)
    if not kind:
        return route
    return route._replace(handler=_refuse if kind == "refused" else _asking(kind, link))


def _asking(kind: str, link: Link) -> Handler:
    def ask(_: Server, call: Call) -> Awaitable[Reply]:
        return link.ask(kind, call)

    return ask


def _refuse(_: Server, __: Call) -> Reply:
    raise Unsupported("shared memory is of one process and this server has several; start it with --workers 1")
