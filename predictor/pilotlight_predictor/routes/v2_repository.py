"""The model-repository extension: list what there is, load and unload while the server runs."""

import base64
import binascii
from typing import Any

from pilotlight_predictor.calls import Call, Reply, json_reply
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.repository.load_parameters import config_of, files_of
from pilotlight_predictor.repository.names import valid_model_name
from pilotlight_predictor.routes.documents import document_of
from pilotlight_predictor.server import Server


def index(server: Server, call: Call) -> Reply:
    ready = document_of(call).get("ready", False)
    if not isinstance(ready, bool):
        raise BadRequest(f"ready = {ready!r}, must be true or false")
    return json_reply(server.registry.index(ready))


async def load(server: Server, call: Call) -> Reply:
    name, parameters = _model(call), _parameters(call)
    config, files = config_of(parameters), files_of(parameters, _from_base64)
    try:
        await server.control.load(name, config, files)
    except LoadFailed as error:
        raise LoadFailed(f"failed to load '{name}': {error}") from None
    return Reply(200, [])


async def unload(server: Server, call: Call) -> Reply:
    name, parameters = _model(call), _parameters(call)
    dependents = parameters.get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise BadRequest(f"parameters.unload_dependents = {dependents!r}, must be true or false")
    await server.control.unload(name, dependents)
    return Reply(200, [])


async def park(server: Server, call: Call) -> Reply:
    """All versions that serve give their GPU memory back."""
    await server.registry.parking.park(server.registry.served(_model(call)))
    return _told(server, call)


async def wake(server: Server, call: Call) -> Reply:
    await server.registry.parking.wake(server.registry.served(_model(call)))
    return _told(server, call)


def _told(server: Server, call: Call) -> Reply:
    """How the model's versions stand, as the index has it."""
    return json_reply([row for row in server.registry.index() if row["name"] == call.params["model"]])


def _model(call: Call) -> str:
    name = call.params["model"]
    if not valid_model_name(name):
        raise BadRequest(
            f"model name {name[:100]!r} is not valid: it must be one path segment without control characters"
        )
    return name


def _parameters(call: Call) -> dict[str, Any]:
    parameters = document_of(call).get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadRequest("parameters must be a JSON object")
    return parameters


def _from_base64(key: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadRequest(f"parameters['{key[:100]}'] must be base64") from None
