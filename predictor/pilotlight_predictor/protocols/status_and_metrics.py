"""`/status` for users and supervisors, `/metrics` for Prometheus."""

from typing import Any

from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.server.handler_context import Server


def status(server: Server, _: HttpRequest) -> HttpResponse:
    """Respond with the state of the server and its models.

    `verified`: the model has answered its warm-up or a request. `unverified_failures`: responses with status 500 before
    that. `warmup_failure`: why a model that serves did not answer zeros. V2's repository index has none of them.
    """
    readiness, rows = server.readiness(), server.registry.index()
    serving = {(served.name, str(served.version)): served for served in server.registry.serving()}
    models: list[dict[str, Any]] = []
    for row in rows:
        served = serving.get((row["name"], row.get("version", "")))
        verification = served.verification() if served is not None else {}
        models.append({**row, **verification})
    return json_response(
        {
            "state": readiness.state,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "phases": server.metrics.cold_start,
            "progress": server.progress,
            "verified": readiness.ready and all(served.verified for served in serving.values()),
            "unverified_failures": sum(served.unverified_failures for served in serving.values()),
            "warmup_failure": next((why for served in serving.values() if (why := served.warmup_failure)), ""),
            "models": models,
            "in_flight": server.metrics.in_flight,
            "parked_bytes": server.metrics.parked()[1],
            "wake_seconds": server.metrics.wake_seconds(),
        },
        200,
    )


def metrics(server: Server, request: HttpRequest) -> HttpResponse:
    from pilotlight_predictor.metrics.collector import collect  # imported on the first scrape
    from pilotlight_predictor.metrics.exposition import content_type, expose

    content = content_type(request.header("accept"))
    return HttpResponse(200, [expose(collect(server.metrics), content)], content)


PROTOCOL = ServingProtocol(
    "status",
    (
        Route("GET", "/status", status, Action.READ, hot=True),  # polled during every cold start
        Route("GET", "/metrics", metrics, Action.METRICS, hot=True),
    ),
    error_body,
)
