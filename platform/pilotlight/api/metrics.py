"""Metrics of the control process and the scrape targets of the platform, for Prometheus.

Metrics of replicas and canaries exist for any target, those of autoscaling only on the embedded platform; on a cluster
Knative and KEDA export them.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from aiohttp import web
from msgspec import json

from pilotlight.api.route_types import Route
from pilotlight.api.target_adapters import BACKEND, ENGINE
from pilotlight.canaries.canary_state import CanaryHistory
from pilotlight.canaries.stored_history import decode_history
from pilotlight.errors import NotFound, PlatformError
from pilotlight.observability import control_metrics
from pilotlight.targets.local.control import metrics_export
from pilotlight.targets.target import CanaryRecord, Key
from pilotlight.wire import http_client, prometheus_text
from pilotlight.wire.prometheus_text import Family

TARGETS: Final = "/api/v1/scrape_targets"
SCRAPE_S: Final = 5.0


async def metrics(request: web.Request) -> web.Response:
    """Return the metrics page: names and counts of services."""
    backend = request.app[BACKEND]
    statuses = await backend.call(lambda target: target.list(None))
    canaries = control_metrics.canaries(decode_histories(await backend.call(lambda target: target.canaries(None))))
    scaling: list[Family] = []
    if engine := request.app.get(ENGINE):
        runs = list(engine.reconciler.runs.values())
        scaling = metrics_export.scaling(runs, statuses, engine.reconciler.clock())
        replicas = engine.reconciler.supervisor.replicas()
        scaling += metrics_export.gpus(replicas, engine.reconciler.gpus.wait_seconds(), engine.reconciler.gpus.memory)
    text = prometheus_text.render_families([control_metrics.replicas(statuses), *scaling, *canaries])
    return web.Response(body=text.encode(), headers={"Content-Type": prometheus_text.CONTENT_TYPE})


def decode_histories(canaries: Iterable[CanaryRecord]) -> list[tuple[Key, CanaryHistory]]:
    """Decode canary histories, without those that another version of the platform wrote and this one cannot read."""
    decoded = []
    for each in canaries:
        with suppress(PlatformError):
            decoded.append((each.key, decode_history(each)))
    return decoded


async def scrape_targets(request: web.Request) -> web.Response:
    """Return the targets of Prometheus' HTTP service discovery: this process, the gateway and every replica."""
    engine = request.app[ENGINE]
    replicas = engine.reconciler.supervisor.replicas()
    targets = metrics_export.targets(replicas, engine.settings.gateway_port, request.host)
    return web.Response(body=json.encode(targets), content_type="application/json")


async def replica_metrics(request: web.Request) -> web.Response:
    """Return the metrics page of a replica, whose own socket Prometheus cannot connect to."""
    name = request.match_info["replica"]
    replicas = request.app[ENGINE].reconciler.supervisor.replicas()
    replica = next((each for each in replicas if each.id == name), None)
    page = await http_client.request(replica.port, "/metrics", SCRAPE_S, host=replica.host) if replica else None
    if page is None or not page.ok:
        raise NotFound(f"replica {name} has no metrics: it is not running")
    return web.Response(body=page.body, headers={"Content-Type": prometheus_text.CONTENT_TYPE})


METRICS: Final = Route("GET", "/metrics", metrics, "Metrics of services in the Prometheus text format.")
ROUTES: Final = (Route("GET", TARGETS, scrape_targets, "Scrape targets, for Prometheus' http_sd."),)
REPLICA_ROUTES: Final = (
    Route("GET", f"{metrics_export.REPLICA_METRICS}/{{replica}}", replica_metrics, "Metrics of a replica."),
)
