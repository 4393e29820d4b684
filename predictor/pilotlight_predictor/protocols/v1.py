"""Routes of KServe's V1 protocol: predict, explain, and readiness of models."""

from collections.abc import Awaitable, Callable
from typing import Any

from pilotlight_predictor.core.requests import NEWEST, InferResponse
from pilotlight_predictor.errors import NotFound, NotReady, Unsupported
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol, model_routes
from pilotlight_predictor.protocols.openai import adapters, routes
from pilotlight_predictor.protocols.run_inference import Finish, decode_and_run, run_inference
from pilotlight_predictor.protocols.v1_codec import DecodedPredict, decode_body, decode_document, encode_predictions
from pilotlight_predictor.protocols.v2.infer import version_of
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.server.handler_context import Server


def alive(server: Server, request: HttpRequest) -> HttpResponse:
    """Respond to probes; a browser gets the landing page."""
    if "text/html" in request.header("accept"):
        from pilotlight_predictor.protocols.pages.routes import landing, wants_page  # for people only

        if wants_page(server, request):
            return landing(server, request)
    return json_response({"status": "alive"})


def models(server: Server, _: HttpRequest) -> HttpResponse:
    """Return `models` for KServe's clients and `data` for OpenAI's, which use the same path."""
    return json_response({"models": server.registry.names(), **routes.model_list(server)})


def model_ready(server: Server, request: HttpRequest) -> HttpResponse:
    """Respond 503 for a known model that is not ready, as KServe does."""
    name, version = request.params["model"], version_of(request)
    try:
        served = adapters.find(server, name) if version == NEWEST else server.find(name, version)
    except NotFound as error:
        if version == NEWEST and name in server.registry.names():
            reason = server.visible_reason(request, server.registry.reason(name))
            raise NotReady(f"model '{name}' is not ready: {reason}") from None
        bare = NotFound(f"Request for unknown model: '{name}' is not found")
        # OpenAI's client retrieves a model here; KServe's reads the status alone.
        return routes.error_body(error if server.may_read(request) else bare)
    except NotReady as error:
        reason = server.registry.reason(name, version) or str(error)
        raise NotReady(server.visible_reason(request, reason)) from None
    if served.name != name:
        return json_response({"name": name, "ready": True, **adapters.adapter_object(served, name, routes.STARTED)})
    if not served.executor.alive:
        raise NotReady(f"model '{name}' is not ready: {server.visible_reason(request, served.executor.problem)}")
    openai = routes.model_object(served) if routes.capabilities_of(served).any else {}
    return json_response({"name": name, "ready": True, **openai})


def predict(server: Server, request: HttpRequest) -> Awaitable[HttpResponse] | None:
    return _infer(server, request, "predict")


def explain(server: Server, request: HttpRequest) -> Awaitable[HttpResponse] | None:
    return _infer(server, request, "explain")


def _infer(server: Server, request: HttpRequest, verb: str) -> Awaitable[HttpResponse] | None:
    version = version_of(request)
    served = server.find(request.params["model"], version)
    if verb not in {"predict", *served.v1_verbs}:
        raise Unsupported(
            f"model '{served.name}' has no explainer: only a kserve.Model with explain() has one; use :predict"
        )
    decode: Callable[..., DecodedPredict] = decode_body
    arguments: tuple[Any, ...] = (
        served.name, version, request.body, served.inputs, served.config.max_batch_size > 0
    )  # fmt: skip
    if verb in served.v1_verbs:
        decode, arguments = decode_document, (served.name, version, request.body, verb)

    def run(decoded: DecodedPredict, finish: Finish) -> None:
        def encode(response: InferResponse) -> HttpResponse:
            if decoded.request.document is not None:
                return HttpResponse(200, [response.outputs["document"].array[0]])
            return HttpResponse(200, encode_predictions(decoded, response))

        current = server.find(decoded.request.model, decoded.request.version)
        run_inference(server, request, current, decoded.request, PROTOCOL, encode, as_text=True, finish=finish)

    return decode_and_run(server, request, decode, arguments, run)


PROTOCOL = ServingProtocol(
    "v1",
    (
        Route("GET", "/", alive, Action.HEALTH, hot=True),
        Route("GET", "/v1/models", models, Action.READ, hot=True),
        *model_routes("/v1", ":predict", "POST", predict, Action.INFER),
        *model_routes("/v1", ":explain", "POST", explain, Action.INFER),
        *model_routes("/v1", "", "GET", model_ready, Action.HEALTH),
    ),
    error_body,
)
