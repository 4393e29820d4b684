"""What a Prometheus reads of whoever serves the API: its metrics, and where everything else is to be scraped.

Replicas and canaries are told for any target. What scales here, and why, only the embedded platform knows itself; on a
cluster Knative and KEDA do.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import web
from msgspec import DecodeError, ValidationError, json

from pilotlight.api.areas import Route
from pilotlight.api.keys import BACKING, ENGINE
from pilotlight.canary.model import Ledger
from pilotlight.observability import exposition, families
from pilotlight.observability.exposition import Family
from pilotlight.targets.local import exported
from pilotlight.targets.target import KeptCanary, Key, ServiceStatus
from pilotlight.wire import prometheus_text

TARGETS: Final = "/api/v1/scrape_targets"


async def metrics(request: web.Request) -> web.Response:
    """Names and numbers of services, and nothing that a caller could not count: no token is asked for."""
    backing = request.app[BACKING]
    statuses = await backing.statuses(None)
    canaries = families.canaries(ledgers(await backing.canaries(None)))
    text = exposition.page([families.replicas(statuses), *_scaling(request.app, statuses), *canaries])
    return web.Response(body=text.encode(), headers={"Content-Type": prometheus_text.CONTENT_TYPE})


def _scaling(app: web.Application, statuses: Sequence[ServiceStatus]) -> list[Family]:
    engine = app.get(ENGINE)
    if engine is None:
        return []
    return exported.scaling(list(engine.machinery.runs.values()), statuses, engine.machinery.clock())


def ledgers(kept: Iterable[KeptCanary]) -> list[tuple[Key, Ledger]]:
    """One that another version wrote, and this one cannot read, must not cost the whole page."""
    found = []
    for each in kept:
        try:
            found.append((each.key, json.decode(each.state, type=Ledger)))
        except (DecodeError, ValidationError):
            continue
    return found


async def scrape_targets(request: web.Request) -> web.Response:
    """For Prometheus' HTTP service discovery: this process, the gateway, and every replica with its service."""
    engine = request.app[ENGINE]
    replicas = engine.machinery.supervisor.replicas()
    found = exported.targets(replicas, engine.settings.gateway_port, request.host)
    return web.Response(body=json.encode(found), content_type="application/json")


METRICS: Final = Route("GET", "/metrics", metrics, "Metrics of services, in Prometheus' text format.")
ROUTES: Final = (Route("GET", TARGETS, scrape_targets, "Where Prometheus finds everything, for its http_sd."),)
