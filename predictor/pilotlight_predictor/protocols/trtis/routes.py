"""Routes of the TRTIS protocol (TensorRT Inference Server, Triton's predecessor): health, status, inference, profile.

Requests are described in the header NV-InferRequest, results in NV-Status, both protobuf text. Errors have an empty
body and the status of the other protocols. The codecs take milliseconds to import and are imported on first use.
"""

from collections.abc import Awaitable

from pilotlight_predictor.core.errors import PredictorError
from pilotlight_predictor.frontends.http.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol
from pilotlight_predictor.server.context import Server


def error_body(error: PredictorError) -> HttpResponse:
    from pilotlight_predictor.protocols.trtis import handlers

    return handlers.error_body(error)


def live(server: Server, request: HttpRequest) -> HttpResponse:
    from pilotlight_predictor.protocols.trtis import handlers

    return handlers.live(server, request)


def ready(server: Server, request: HttpRequest) -> HttpResponse:
    from pilotlight_predictor.protocols.trtis import handlers

    return handlers.ready(server, request)


def status(server: Server, request: HttpRequest) -> HttpResponse:
    from pilotlight_predictor.protocols.trtis import handlers

    return handlers.status(server, request)


def infer(server: Server, request: HttpRequest) -> None:
    from pilotlight_predictor.protocols.trtis import handlers

    handlers.infer(server, request, PROTOCOL)


def profile(server: Server, request: HttpRequest) -> Awaitable[HttpResponse]:
    from pilotlight_predictor.protocols.trtis import handlers

    return handlers.profile(server, request)


PROTOCOL = ServingProtocol(
    "trtis",
    (
        Route("GET", "/api/health/live", live, Action.HEALTH, hot=True),
        Route("GET", "/api/health/ready", ready, Action.HEALTH, hot=True),
        Route("GET", "/api/status", status, Action.READ),
        Route("GET", "/api/status/{model}", status, Action.READ),
        Route("POST", "/api/infer/{model}", infer, Action.INFER, hot=True),
        Route("POST", "/api/infer/{model}/{version}", infer, Action.INFER, hot=True),
        Route("GET", "/api/profile", profile, Action.ADMIN),
    ),
    error_body,
)
