"""Repository, shared memory, trace and log settings.

Model-repository extension of V2: index, load, unload, park, wake.

Shared-memory extensions of V2: register, list and unregister regions. CUDA shared memory is not supported.

Logging extension of V2: read and change log settings. Requires the admin action.

Trace extension of V2: read and change trace settings, global or of one model. Requires the admin action.
"""

import base64
import binascii
from typing import Any

from pilotlight_predictor.core.errors import BadRequest, LoadFailed, NotFound, Unsupported
from pilotlight_predictor.frontends.http.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Route
from pilotlight_predictor.protocols.json_body import read_json_object
from pilotlight_predictor.repository.config_reader import config_parameter, file_parameters
from pilotlight_predictor.repository.model_config import valid_model_name
from pilotlight_predictor.server.context import Server


def index(server: Server, request: HttpRequest) -> HttpResponse:
    ready = read_json_object(request).get("ready", False)
    if not isinstance(ready, bool):
        raise BadRequest(f"ready = {ready!r}, must be true or false")
    return json_response(server.registry.index(ready))


async def load(server: Server, request: HttpRequest) -> HttpResponse:
    name, parameters = _model(request), _parameters(request)
    config, files = config_parameter(parameters), file_parameters(parameters, _from_base64)
    try:
        await server.control.load(name, config, files)
    except LoadFailed as error:
        raise LoadFailed(f"failed to load '{name}': {error}") from None
    return HttpResponse(200, [])


async def unload(server: Server, request: HttpRequest) -> HttpResponse:
    name, parameters = _model(request), _parameters(request)
    dependents = parameters.get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise BadRequest(f"parameters.unload_dependents = {dependents!r}, must be true or false")
    await server.control.unload(name, dependents)
    return HttpResponse(200, [])


async def park(server: Server, request: HttpRequest) -> HttpResponse:
    """Release the GPU memory of all served versions."""
    await server.registry.parking.park(server.registry.served(_model(request)))
    return _index_rows(server, request)


async def wake(server: Server, request: HttpRequest) -> HttpResponse:
    await server.registry.parking.wake(server.registry.served(_model(request)))
    return _index_rows(server, request)


def _index_rows(server: Server, request: HttpRequest) -> HttpResponse:
    """Return the model's rows of the index."""
    return json_response([row for row in server.registry.index() if row["name"] == request.params["model"]])


def _model(request: HttpRequest) -> str:
    name = request.params["model"]
    if not valid_model_name(name):
        raise BadRequest(
            f"model name {name[:100]!r} is not valid: it must be one path segment without control characters"
        )
    return name


def _parameters(request: HttpRequest) -> dict[str, Any]:
    parameters = read_json_object(request).get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadRequest("parameters must be a JSON object")
    return parameters


def _from_base64(key: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadRequest(f"parameters['{key[:100]}'] must be base64") from None


NO_SUCH_CUDA = "Unable to find cuda shared memory region"
NO_CUDA = "memory of a GPU cannot be shared with this server: register system shared memory, or send the tensors"


def status(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.shared_memory.status(request.params.get("region", "")))


def register(server: Server, request: HttpRequest) -> HttpResponse:
    document = read_json_object(request)
    key, offset = document.get("key"), document.get("offset", 0)
    if not isinstance(key, str):
        raise BadRequest(f"key = {key!r}, must be the name of a shared memory object, such as /my_tensors")
    server.shared_memory.register(request.params["region"], key, offset, document.get("byte_size", 0))
    return HttpResponse(200, [])


def unregister(server: Server, request: HttpRequest) -> HttpResponse:
    server.shared_memory.unregister(request.params.get("region", ""))
    return HttpResponse(200, [])


def no_regions(_: Server, request: HttpRequest) -> HttpResponse:
    if name := request.params.get("region"):
        raise NotFound(f"{NO_SUCH_CUDA}: '{name}'")
    return json_response([])


def nothing_to_unregister(_: Server, __: HttpRequest) -> HttpResponse:
    return HttpResponse(200, [])


def refuse_cuda(_: Server, __: HttpRequest) -> HttpResponse:
    raise Unsupported(NO_CUDA)


def _of_region(kind: str, method: str, verb: str, handler: Any) -> tuple[Route, Route]:
    """Return the routes for one region and for all."""
    return (
        Route(method, f"/v2/{kind}/region/{{region}}/{verb}", handler, Action.ADMIN),
        Route(method, f"/v2/{kind}/{verb}", handler, Action.ADMIN),
    )


ROUTES = (
    *_of_region("systemsharedmemory", "GET", "status", status),
    Route("POST", "/v2/systemsharedmemory/region/{region}/register", register, Action.ADMIN),
    *_of_region("systemsharedmemory", "POST", "unregister", unregister),
    *_of_region("cudasharedmemory", "GET", "status", no_regions),
    Route("POST", "/v2/cudasharedmemory/region/{region}/register", refuse_cuda, Action.ADMIN),
    *_of_region("cudasharedmemory", "POST", "unregister", nothing_to_unregister),
)


def v2_logging_settings(server: Server, _: HttpRequest) -> HttpResponse:
    return json_response(server.log_settings.values())


def v2_logging_change(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.log_settings.change(read_json_object(request)))


V2_LOGGING_ROUTES = (
    Route("GET", "/v2/logging", v2_logging_settings, Action.ADMIN),
    Route("POST", "/v2/logging", v2_logging_change, Action.ADMIN),
)


def settings(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.traces.settings(_v2_trace_model(server, request)))


def change(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.traces.change(read_json_object(request), _v2_trace_model(server, request)))


def _v2_trace_model(server: Server, request: HttpRequest) -> str:
    """Return the model name, empty for all models. Raise NotFound."""
    name = request.params.get("model")
    return server.find(name).name if name else ""


V2_TRACE_ROUTES = tuple(
    Route(method, f"/v2{of}/trace/setting", handler, Action.ADMIN)
    for of in ("", "/models/{model}", "/models/{model}/versions/{version}")
    for method, handler in (("GET", settings), ("POST", change))
)
