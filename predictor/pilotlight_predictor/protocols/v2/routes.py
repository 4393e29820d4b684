"""Routes of the V2 (Open Inference) protocol: health, metadata, inference, configuration, statistics, repository."""

from collections.abc import Sequence
from typing import Any

from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import BadRequest, NotFound, PredictorError
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Route, ServingProtocol, model_routes
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.v2 import admin, infer
from pilotlight_predictor.protocols.v2.infer import version_of
from pilotlight_predictor.protocols.v2.infer_response import error_body
from pilotlight_predictor.server.handler_context import Server

EXTENSIONS = (
    "classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy",
    "model_configuration", "system_shared_memory", "binary_tensor_data", "parameters", "statistics", "trace", "logging",
)  # fmt: skip


def server_metadata(server: Server, _: HttpRequest) -> HttpResponse:
    return json_response({"name": server.name, "version": server.version, "extensions": EXTENSIONS})


def live(_: Server, __: HttpRequest) -> HttpResponse:
    return json_response({"live": True})


def ready(server: Server, request: HttpRequest) -> HttpResponse:
    readiness = server.readiness()
    if readiness.ready:
        return json_response({"ready": True})
    reason = server.visible_reason(request, readiness.reason)
    document = {"ready": False, "state": readiness.state, "reason": reason}
    return json_response(document, server.not_ready_status, {"Retry-After": "1"})


def models(server: Server, _: HttpRequest) -> HttpResponse:
    return json_response({"models": server.registry.names()})


def model_ready(server: Server, request: HttpRequest) -> HttpResponse:
    name, version = request.params["model"], version_of(request)
    if request.as_triton:
        return _ready_as_triton(server, name, version)
    try:
        served = server.registry.find(name, version)
    except NotFound:
        if not server.starting and (version != NEWEST or name not in server.registry.names()):
            if server.may_read(request):
                raise
            raise NotFound(f"Request for unknown model: '{name}' is not found") from None
        reason = server.registry.reason(name)
    except PredictorError as error:
        reason = server.registry.reason(name, version) or str(error)
    else:
        if served.executor.alive:
            return json_response({"name": name, "ready": True})
        reason = served.executor.problem
    document = {"name": name, "ready": False, "reason": server.visible_reason(request, reason)}
    return json_response(document, server.not_ready_status)


def _ready_as_triton(server: Server, name: str, version: int) -> HttpResponse:
    """Return an empty response, or raise BadRequest, without a reason, for any model that is not ready."""
    try:
        if server.registry.find(name, version).executor.alive:
            return HttpResponse(200, [])
    except PredictorError:
        pass
    raise BadRequest("Model version not ready")


def model_metadata(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(metadata(server, find(server, request), one_version="version" in request.params))


def metadata(server: Server, served: ModelVersion, *, one_version: bool) -> dict[str, Any]:
    """Return the metadata of a model, with this version or with all that serve."""
    versions = [served] if one_version else server.registry.served(served.name)
    # Labels of the model file only: Triton keeps those of a label_filename to its classification extension.
    filed = {output.name for output in served.config.outputs if output.label_filename}
    labels = {name: labels for name, labels in served.labels.items() if name not in filed}
    return {
        "name": served.name,
        "versions": [str(each.version) for each in versions],
        "platform": served.config.platform or served.config.backend,
        "inputs": tensor_metadata(served.inputs),
        "outputs": [
            {**output, "parameters": {"labels": labels[output["name"]]}} if output["name"] in labels else output
            for output in tensor_metadata(served.outputs)
        ],
    }


def model_config(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(find(server, request).config.raw)


def model_stats(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(statistics(server, find(server, request), one_version="version" in request.params))


def statistics(server: Server, served: ModelVersion, *, one_version: bool) -> dict[str, Any]:
    """Return the statistics of this version, or of all that serve."""
    versions = [served] if one_version else server.registry.served(served.name)
    return {"model_stats": [each.stats.as_v2() for each in versions]}


def all_stats(server: Server, _: HttpRequest) -> HttpResponse:
    return json_response(server.metrics.statistics())


def find(server: Server, request: HttpRequest) -> ModelVersion:
    return server.registry.find(request.params["model"], version_of(request))


def tensor_metadata(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    tensors = []
    for spec in specs:
        tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}
        parameters: dict[str, Any] = {"optional": True} if spec.optional else {}
        if spec.columns:
            parameters["columns"] = spec.columns
        tensors.append({**tensor, "parameters": parameters} if parameters else tensor)
    return tensors


PROTOCOL = ServingProtocol(
    "v2",
    (
        Route("GET", "/v2", server_metadata, Action.READ, hot=True),
        Route("GET", "/v2/health/live", live, Action.HEALTH, hot=True),
        Route("GET", "/v2/health/ready", ready, Action.HEALTH, hot=True),
        Route("GET", "/v2/models", models, Action.READ, hot=True),
        Route("GET", "/v2/models/stats", all_stats, Action.READ, hot=True),
        *model_routes("/v2", "/infer", "POST", infer.infer, Action.INFER),
        *model_routes("/v2", "/ready", "GET", model_ready, Action.HEALTH),
        *model_routes("/v2", "/config", "GET", model_config, Action.READ),
        *model_routes("/v2", "/stats", "GET", model_stats, Action.READ),
        *model_routes("/v2", "", "GET", model_metadata, Action.READ),
        *admin.SHARED_MEMORY_ROUTES,
        *admin.TRACE_ROUTES,
        *admin.LOG_ROUTES,
        Route("POST", "/v2/repository/index", admin.index, Action.ADMIN, hot=True),
        Route("POST", "/v2/repository/{repository}/index", admin.index, Action.ADMIN, hot=True),
        Route("POST", "/v2/repository/models/{model}/load", admin.load, Action.ADMIN, hot=True),
        Route("POST", "/v2/repository/models/{model}/unload", admin.unload, Action.ADMIN, hot=True),
        Route("POST", "/v2/repository/models/{model}/park", admin.park, Action.ADMIN),
        Route("POST", "/v2/repository/models/{model}/wake", admin.wake, Action.ADMIN),
        Route("POST", "/v2/repository/{repository}/models/{model}/load", admin.load, Action.ADMIN, hot=True),
        Route("POST", "/v2/repository/{repository}/models/{model}/unload", admin.unload, Action.ADMIN, hot=True),
    ),
    error_body,
)
