"""Fan-out of HTTP routes that concern all workers: their handlers are replaced by ones that forward to all workers.

Requests that come from the supervisor are served by the unchanged routes.
"""

from collections.abc import Awaitable
from typing import Final

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import HttpRequest, HttpResponse
from pilotlight_predictor.dispatch import Handler, Route, ServingProtocol
from pilotlight_predictor.errors import Unsupported
from pilotlight_predictor.server import Server
from pilotlight_predictor.workers.link import ParentChannel

MERGED: Final = {
    "/metrics": "metrics",
    "/status": "status",
    "/v2/models/stats": "statistics",
    "/v2/models/{model}/stats": "statistics",
    "/v2/models/{model}/versions/{version}/stats": "statistics",
    "/v2/repository/index": "index",
    "/v2/repository/{repository}/index": "index",
}
CONTROL: Final = ("load", "unload", "park", "wake")  # without a timeout


def fan_out(protocols: tuple[ServingProtocol, ...], channel: ParentChannel) -> tuple[ServingProtocol, ...]:
    return tuple(
        protocol._replace(routes=tuple(_fan_out_route(route, channel) for route in protocol.routes))
        for protocol in protocols
    )


def merge_mode(route: Route) -> str:
    """Return how the responses are merged; empty if any single worker can respond."""
    if "sharedmemory" in route.pattern:
        return "refused"
    if route.pattern in MERGED:
        return MERGED[route.pattern]
    if route.action is not Action.ADMIN:
        return ""
    last = route.pattern.rsplit("/", 1)[-1]
    return last if last in CONTROL else "all"


def _fan_out_route(route: Route, channel: ParentChannel) -> Route:
    mode = merge_mode(route)
    if not mode:
        return route
    return route._replace(handler=_refuse if mode == "refused" else _forward(mode, channel))


def _forward(mode: str, channel: ParentChannel) -> Handler:
    def forward(_: Server, request: HttpRequest) -> Awaitable[HttpResponse]:
        return channel.request(mode, request)

    return forward


def _refuse(_: Server, __: HttpRequest) -> HttpResponse:
    raise Unsupported("shared memory is of one process and this server has several; start it with --workers 1")
