"""Model-repository extension of V2: index, load, unload, park, wake."""

import base64
import binascii
from typing import Any

from pilotlight_predictor.calls import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.repository.load_parameters import config_parameter, file_parameters
from pilotlight_predictor.repository.names import valid_model_name
from pilotlight_predictor.routes.documents import read_json_object
from pilotlight_predictor.server import Server


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
