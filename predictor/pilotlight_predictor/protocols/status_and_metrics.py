"""`/status` for users and supervisors, `/metrics` for Prometheus."""

from pilotlight_predictor.frontends.http.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.server.handler_context import Server


def status(server: Server, _: HttpRequest) -> HttpResponse:
    readiness = server.readiness()
    return json_response(
        {
            "state": readiness.state,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "phases": server.metrics.cold_start,
            "progress": server.progress,
            "models": server.registry.index(),
            "in_flight": server.metrics.in_flight,
            "parked_bytes": server.metrics.parked()[1],
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
        Route("GET", "/metrics", metrics, Action.METRICS),
    ),
    error_body,
)
