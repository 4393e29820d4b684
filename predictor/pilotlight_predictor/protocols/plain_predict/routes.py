"""Routes of the predict protocol: POST /predict, WebSocket /predict/stream, /healthz and /ready.

docs/reference/http-api.md describes them.

Lists of numbers in, predictions out, for models with one input. Its limits have defaults; those of other protocols
apply only if they are set. Errors are {"detail": …}.
"""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from pilotlight_predictor.config import limits
from pilotlight_predictor.core.requests import RequestedOutput
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import NotReady, PredictorError
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import (
    HttpRequest,
    HttpResponse,
    WebSocketSession,
    json_response,
    valid_text,
)
from pilotlight_predictor.frontends.http.router import ErrorBody, Route, ServingProtocol
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import SHORT
from pilotlight_predictor.protocols.plain_predict.batch_and_stream import NAME, PredictInference, PredictStream
from pilotlight_predictor.protocols.plain_predict.codec import (
    InvalidInput,
    PredictPart,
    PredictRequest,
    read_body,
    split_request,
)
from pilotlight_predictor.protocols.run_inference import await_response, decode_long
from pilotlight_predictor.server.handler_context import Server

STICKY_HEADER: Final = "x-sticky-key"
NOT_LOADED: Final = "Model not loaded"
RETRY_AFTER: Final = {"Retry-After": "1"}


def error_body(error: PredictorError) -> HttpResponse:
    return json_response({"detail": valid_text(error)}, error.status)


def predict(server: Server, request: HttpRequest) -> Awaitable[HttpResponse] | None:
    return start_predict(server, request, error_body)


def start_predict(server: Server, request: HttpRequest, error_body: ErrorBody) -> Awaitable[HttpResponse] | None:
    """Start an inference; the response is awaited, or sent through `request.finish`."""
    if len(request.body) > SHORT:
        return _predict_long(server, request, error_body)
    predict_request = read_body(request.body)
    served = choose_version(server, predict_request, request.header(STICKY_HEADER))
    parts = plan(served, predict_request)
    PredictInference(server, request, served, parts, error_body, predict_request.batch).start(request.finish)
    return None


async def _predict_long(server: Server, request: HttpRequest, error_body: ErrorBody) -> HttpResponse:
    """Decode a large body off the event loop; in the meantime the client may disconnect and the model be replaced."""
    predict_request = await decode_long(server, request.body, read_body, request.body)
    served = choose_version(server, predict_request, request.header(STICKY_HEADER))
    parts = await server.codecs.run(lambda: plan(served, predict_request))
    served = server.find(served.name, served.version)
    inference = PredictInference(server, request, served, parts, error_body, predict_request.batch)
    return await await_response(request, inference.start)


def plan(served: ModelVersion, predict_request: PredictRequest) -> list[PredictPart]:
    parts = split_request(
        predict_request, served.name, served.version, _only_input(served), served.config.max_batch_size
    )
    output_name = predict_request.output or next((output.name for output in served.outputs), "")
    for part in parts:
        part.request.outputs = (RequestedOutput(output_name),) if output_name else ()
    return parts


def choose_version(server: Server, predict_request: PredictRequest, sticky: str = "") -> ModelVersion:
    """Return the requested version, else one by the weights of an A/B test, else the newest."""
    name, versions = predict_request.model_name or default_model(server), server.versions
    if predict_request.model_version or not versions.is_weighted(name):
        return server.find(name, versions.number(name, predict_request.model_version))
    ready = {served.version for served in server.registry.served(name)}
    return server.find(name, versions.choose(name, ready, predict_request.sticky_key or sticky))


def default_model(server: Server) -> str:
    """Return the only model, or the only one that the server was started for."""
    for names in (server.registry.requested(), server.control.required):
        if len(names) == 1:
            return names[0]
    names = server.registry.requested()
    if not names:
        raise NotReady(NOT_LOADED)
    known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    raise InvalidInput(f"model_name is missing, must be one of the {len(names)} models: {known}")


def _only_input(served: ModelVersion) -> TensorSpec:
    needed = [spec for spec in served.inputs if not spec.optional] or list(served.inputs)
    if len(needed) == 1:
        return needed[0]
    names = ", ".join(spec.name for spec in needed)
    raise InvalidInput(
        f"model '{served.name}' has {len(needed)} inputs ({names}), /predict supports one; call"
        f" /v2/models/{served.name}/infer"
    )


async def stream(server: Server, session: WebSocketSession) -> None:
    await PredictStream(server, session, start_predict).run()


def upgrade_needed(_: Server, __: HttpRequest) -> HttpResponse:
    body = {"detail": "/predict/stream is a WebSocket: send Connection: Upgrade and Upgrade: websocket"}
    return json_response(body, 426, {"Upgrade": "websocket", "Connection": "Upgrade"})


def healthz(server: Server, request: HttpRequest) -> HttpResponse:
    readiness = server.readiness()
    if not readiness.ready:
        reason = server.visible_reason(request, readiness.reason)
        body = {"detail": NOT_LOADED, "state": readiness.state, "reason": reason}
        return json_response(body, 503, RETRY_AFTER)
    version = "unknown"  # if there are several models
    with suppress(PredictorError):
        served = server.find(default_model(server))
        version = server.versions.label(served.name, served.version)
    return json_response({"status": "healthy", "model_version": version})


def ready(server: Server, request: HttpRequest) -> HttpResponse:
    readiness = server.readiness()
    if readiness.ready:
        return json_response({"status": "ready"})
    reason = server.visible_reason(request, readiness.reason)
    return json_response({"detail": reason or readiness.state, "state": readiness.state}, 503, RETRY_AFTER)


PROTOCOL = ServingProtocol(
    NAME,
    (
        Route("POST", "/predict", predict, Action.INFER, hot=True),
        Route("GET", "/predict/stream", upgrade_needed, Action.INFER, socket=stream),
        Route("GET", "/healthz", healthz, Action.HEALTH, hot=True),
        Route("GET", "/ready", ready, Action.HEALTH, hot=True),
    ),
    error_body,
    lambda settings: limits(settings, predict=True),
)
