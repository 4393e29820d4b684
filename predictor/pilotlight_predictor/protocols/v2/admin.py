"""Administrative extensions of V2: model repository, shared memory, log and trace settings.

CUDA shared memory is not supported.
"""

import base64
import binascii
from typing import Any, Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest, LoadFailed, NotFound, RequestTooLarge, Unsupported
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.frontends.http.router import Route
from pilotlight_predictor.protocols.json_values import LONG
from pilotlight_predictor.protocols.run_inference import decode_long
from pilotlight_predictor.protocols.triton_requests import check_load, log_changes, trace_changes
from pilotlight_predictor.repository.load_parameters import config_parameter, file_parameters, json_object
from pilotlight_predictor.repository.model_config import valid_model_name
from pilotlight_predictor.server.handler_context import Server

MAX_BYTES: Final = 1 << 20  # of a body, but of a load, which may have the files of a model: decoded in 5 ms
NO_SUCH_CUDA: Final = "Unable to find cuda shared memory region"
NO_CUDA: Final = "memory of a GPU cannot be shared with this server: register system shared memory, or send the tensors"


def index(server: Server, request: HttpRequest) -> HttpResponse:
    ready = _read_json_object(request).get("ready", False)
    if not isinstance(ready, bool):
        raise BadRequest(f"ready = {ready!r}, must be true or false")
    return json_response(server.registry.index(ready))


async def load(server: Server, request: HttpRequest) -> HttpResponse:
    name, body = _model(request), request.body
    if len(body) <= LONG:
        config, files = _load_parameters(body)
    else:
        config, files = await decode_long(server, body, _load_parameters, body)
    if request.as_triton and len(body) <= LONG:
        check_load(_parameters(_decode(body)), request.params.get("repository", ""))
    await load_model(server, name, config, files)
    return HttpResponse(200, [])


async def load_model(server: Server, name: str, config: dict[str, Any] | None, files: dict[str, bytes]) -> None:
    try:
        await server.control.load(name, config, files)
    except LoadFailed as error:
        raise LoadFailed(f"failed to load '{name}': {error}") from None


async def unload(server: Server, request: HttpRequest) -> HttpResponse:
    if request.as_triton:
        check_load({}, request.params.get("repository", ""))
    await unload_model(server, _model(request), _unload_parameters(request))
    return HttpResponse(200, [])


def _unload_parameters(request: HttpRequest) -> dict[str, Any]:
    """Return the parameters; Triton reads only a valid one."""
    try:
        parameters = _parameters(_read_json_object(request))
    except BadRequest:
        if not request.as_triton:
            raise
        return {}
    dependents = isinstance(parameters.get("unload_dependents"), bool)
    return parameters if dependents or not request.as_triton else {}


async def unload_model(server: Server, name: str, parameters: dict[str, Any]) -> None:
    dependents = parameters.get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise BadRequest(f"parameters.unload_dependents = {dependents!r}, must be true or false")
    try:
        await server.control.unload(name, dependents)
    except NotFound:
        if not server.settings.server.as_triton:  # Triton reports success
            raise


async def park(server: Server, request: HttpRequest) -> HttpResponse:
    """Release the GPU memory of all served versions."""
    await server.registry.parking.park(server.registry.served(_model(request)))
    return _index_rows(server, request)


async def wake(server: Server, request: HttpRequest) -> HttpResponse:
    await server.registry.parking.wake(server.registry.served(_model(request)))
    return _index_rows(server, request)


def _index_rows(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response([row for row in server.registry.index() if row["name"] == request.params["model"]])


def _load_parameters(body: Buffer) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    def from_base64(key: str, value: Any) -> bytes:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadRequest(f"parameters['{key[:100]}'] must be base64") from None

    parameters = _parameters(_decode(body))
    return config_parameter(parameters), file_parameters(parameters, from_base64)


def _read_json_object(request: HttpRequest) -> dict[str, Any]:
    """Return the JSON object; an empty body is an empty object. Raise BadRequest or RequestTooLarge."""
    if len(request.body) > MAX_BYTES:
        raise RequestTooLarge(f"the body has {len(request.body)} bytes, the limit of {request.path} is {MAX_BYTES}")
    return _decode(request.body)


def _decode(body: Buffer) -> dict[str, Any]:
    return json_object(body, "the body") if len(body) else {}


def _model(request: HttpRequest) -> str:
    return checked_name("model name", request.params["model"])


def checked_name(field: str, name: str) -> str:
    """Return the name of a model. Raise BadRequest if it cannot be one."""
    if not valid_model_name(name):
        rule = "it must be one path segment without control characters"
        raise BadRequest(f"{field} {name[:100]!r} is not valid: {rule}")
    return name


def _parameters(document: dict[str, Any]) -> dict[str, Any]:
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadRequest("parameters must be a JSON object")
    return parameters


def shared_memory_status(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.shared_memory.status(request.params.get("region", "")))


def register(server: Server, request: HttpRequest) -> HttpResponse:
    document = _read_json_object(request)
    key, offset = document.get("key"), document.get("offset", 0)
    if request.as_triton and not len(request.body):
        raise BadRequest("the body is not valid JSON: it is empty")
    if not isinstance(key, str):
        raise BadRequest(f"key = {key!r}, must be the name of a shared memory object, such as /my_tensors")
    server.shared_memory.register(request.params["region"], key, offset, document.get("byte_size"))
    return HttpResponse(200, [])


def unregister(server: Server, request: HttpRequest) -> HttpResponse:
    server.shared_memory.unregister(request.params.get("region", ""))
    return HttpResponse(200, [])


def no_regions(_: Server, request: HttpRequest) -> HttpResponse:
    if name := request.params.get("region"):
        raise NotFound(f"{NO_SUCH_CUDA}: '{name}'")
    return json_response([])


def refuse_cuda(_: Server, __: HttpRequest) -> HttpResponse:
    raise Unsupported(NO_CUDA)


def _of_region(kind: str, method: str, verb: str, handler: Any) -> tuple[Route, Route]:
    """Return the routes for one region and for all."""
    return (
        Route(method, f"/v2/{kind}/region/{{region}}/{verb}", handler, Action.ADMIN),
        Route(method, f"/v2/{kind}/{verb}", handler, Action.ADMIN),
    )


SHARED_MEMORY_ROUTES = (
    *_of_region("systemsharedmemory", "GET", "status", shared_memory_status),
    Route("POST", "/v2/systemsharedmemory/region/{region}/register", register, Action.ADMIN),
    *_of_region("systemsharedmemory", "POST", "unregister", unregister),
    *_of_region("cudasharedmemory", "GET", "status", no_regions),
    Route("POST", "/v2/cudasharedmemory/region/{region}/register", refuse_cuda, Action.ADMIN),
    *_of_region("cudasharedmemory", "POST", "unregister", lambda _, __: HttpResponse(200, [])),
)


def log_settings(server: Server, _: HttpRequest) -> HttpResponse:
    return json_response(server.log_settings.values())


def change_log_settings(server: Server, request: HttpRequest) -> HttpResponse:
    document = _settings(request)
    changes = log_changes(document, server.log_settings.values()) if request.as_triton else document
    return json_response(server.log_settings.change(changes))


def _settings(request: HttpRequest) -> dict[str, Any]:
    """Return the settings to change; Triton takes an empty list for none."""
    return {} if request.as_triton and bytes(request.body).strip() == b"[]" else _read_json_object(request)


LOG_ROUTES = (
    Route("GET", "/v2/logging", log_settings, Action.ADMIN),
    Route("POST", "/v2/logging", change_log_settings, Action.ADMIN),
)


def trace_settings(server: Server, request: HttpRequest) -> HttpResponse:
    return json_response(server.traces.settings(_traced_model(server, request)))


def change_trace_settings(server: Server, request: HttpRequest) -> HttpResponse:
    document, model = _settings(request), _traced_model(server, request)
    changes = trace_changes(document, server.traces.settings(model)) if request.as_triton else document
    return json_response(server.traces.change(changes, model))


def _traced_model(server: Server, request: HttpRequest) -> str:
    """Return the model name, empty for all models. Raise NotFound."""
    name = request.params.get("model")
    return server.find(name).name if name else ""


TRACE_ROUTES = tuple(
    Route(method, f"/v2{of}/trace/setting", handler, Action.ADMIN)
    for of in ("", "/models/{model}", "/models/{model}/versions/{version}")
    for method, handler in (("GET", trace_settings), ("POST", change_trace_settings))
)
