"""What the server is doing, and its metrics: `/status` for people and supervisors, `/metrics` for Prometheus."""

from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply, json_reply
from pilotlight_predictor.dispatch import Dialect, Route
from pilotlight_predictor.routes.v2_answer import error_body
from pilotlight_predictor.server import Server


def status(server: Server, _: Call) -> Reply:
    verdict = server.readiness()
    return json_reply(
        {
            "state": verdict.state,
            "ready": verdict.ready,
            "reason": verdict.reason,
            "phases": server.metrics.cold_start,
            "progress": server.progress,
            "models": server.registry.index(),
            "in_flight": server.metrics.in_flight,
            "parked_bytes": server.metrics.parked()[1],
        },
        200,
    )


def metrics(server: Server, call: Call) -> Reply:
    from pilotlight_predictor.metrics.collect import collect  # only a process that is scraped pays for these
    from pilotlight_predictor.metrics.exposition import content_type, expose

    content = content_type(call.header("accept"))
    return Reply(200, [expose(collect(server.metrics), content)], content)


DIALECT = Dialect(
    "status",
    (
        Route("GET", "/status", status, Action.READ, hot=True),  # asked during every cold start
        Route("GET", "/metrics", metrics, Action.METRICS),
    ),
    error_body,
)
