"""Routes of the recorded history: figures of a service over time, tokens by day, range queries, and their dashboards.

Only the control process of the embedded platform records a history; a cluster has its Prometheus and Grafana.
"""

from typing import Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.json_bodies import json_response, read_body
from pilotlight.api.route_types import Route
from pilotlight.api.services import SERVICE, key_of
from pilotlight.api.streams import int_parameter
from pilotlight.api.target_adapters import ENGINE
from pilotlight.errors import UsageError
from pilotlight.observability import files
from pilotlight.targets.local.history.points import RESOLUTIONS, SPAN, ServiceHistory
from pilotlight.targets.local.history.range_query import RangeResult
from pilotlight.targets.target import UsageRow


class RangeQuery(Struct, frozen=True):
    """PromQL over the last `seconds`; Grafana's $__rate_interval and $__range are replaced."""

    query: str
    seconds: int = RESOLUTIONS[0].span


class Dashboard(Struct, frozen=True):
    name: str
    title: str
    description: str
    panels: tuple[files.Panel, ...]


async def history(request: web.Request) -> web.Response:
    """Return the figures of the last `seconds` in intervals of `step` seconds; by default the finest for the range."""
    seconds = checked_range(int_parameter(request, "seconds", RESOLUTIONS[0].span))
    step = int_parameter(request, "step", 0)
    return json_response(await request.app[ENGINE].history(key_of(request), seconds, step))


async def usage(request: web.Request) -> web.Response:
    """Return tokens by day, service, model and caller, from the day `since` (YYYY-MM-DD) on."""
    return json_response(request.app[ENGINE].usage(request.query.get("since", "")))


async def query_range(request: web.Request) -> web.Response:
    body = await read_body(request, RangeQuery)
    return json_response(await request.app[ENGINE].query_range(body.query, checked_range(body.seconds)))


async def dashboards(request: web.Request) -> web.Response:
    """Return the panels of the Grafana dashboards, from the same files."""
    found = zip(files.DASHBOARDS, map(json.decode, files.dashboard_files().values()), strict=True)
    return json_response(
        [Dashboard(name, each["title"], each["description"], files.panels(each)) for name, each in found]
    )


def checked_range(seconds: int) -> int:
    if not 0 < seconds <= SPAN:
        raise UsageError(f"seconds is {seconds}, must be between 1 and {SPAN}")
    return seconds


ROUTES: Final = (
    Route(
        "GET", f"{SERVICE}/history", history, "Its recorded figures: requests, latency, errors, replicas, queue.",
        responses={200: ServiceHistory}, query=("seconds", "step"),
    ),
    Route(
        "GET", "/api/v1/usage", usage, "Tokens by day, service, model and caller.",
        responses={200: tuple[UsageRow, ...]}, query=("since",),
    ),
    Route("POST", "/api/v1/query_range", query_range, "Query metrics over time.", RangeQuery, {200: RangeResult}),
    Route(
        "GET", "/api/v1/dashboards", dashboards, "Dashboards with their panels and queries.",
        responses={200: tuple[Dashboard, ...]},
    ),
)  # fmt: skip
