"""Routes of the TRTIS protocol (TensorRT Inference Server, Triton's predecessor): health, status, inference, profile.

Requests are described in the header NV-InferRequest, results in NV-Status, both protobuf text. Errors have an empty
body and the status of the other protocols. The codecs take milliseconds to import and are imported on first use.
"""

from collections.abc import Awaitable

from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import Handler, Route, ServingProtocol
from pilotlight_predictor.server.handler_context import Server


def error_body(error: PredictorError) -> HttpResponse:
    from pilotlight_predictor.protocols.trtis import handlers

    return handlers.error_body(error)


def _handler(name: str) -> Handler:
    """Return a handler that imports the function of `handlers` with this name."""

    def handle(server: Server, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse] | None:
        from pilotlight_predictor.protocols.trtis import handlers

        outcome: HttpResponse | Awaitable[HttpResponse] | None = getattr(handlers, name)(server, request)
        return outcome

    return handle


def infer(server: Server, request: HttpRequest) -> Awaitable[HttpResponse] | None:
    from pilotlight_predictor.protocols.trtis import handlers

    return handlers.infer(server, request, PROTOCOL)


PROTOCOL = ServingProtocol(
    "trtis",
    (
        Route("GET", "/api/health/live", _handler("live"), Action.HEALTH, hot=True),
        Route("GET", "/api/health/ready", _handler("ready"), Action.HEALTH, hot=True),
        Route("GET", "/api/status", _handler("status"), Action.READ, hot=True),
        Route("GET", "/api/status/{model}", _handler("status"), Action.READ, hot=True),
        Route("POST", "/api/infer/{model}", infer, Action.INFER, hot=True),
        Route("POST", "/api/infer/{model}/{version}", infer, Action.INFER, hot=True),
        Route("GET", "/api/profile", _handler("profile"), Action.ADMIN),
    ),
    error_body,
)
