"""Model-repository extension of V2 over gRPC: index, load, unload, with the parameters of HTTP."""

from typing import Any

from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.repository.load_parameters import bytes_parameter, config_parameter, file_parameters
from pilotlight_predictor.repository.names import valid_model_name
from pilotlight_predictor.rpc.messages import Message, decode, encode
from pilotlight_predictor.rpc.service import GrpcRequest
from pilotlight_predictor.server import Server


def index(server: Server, request: GrpcRequest) -> bytes:
    ready = decode("inference.RepositoryIndexRequest", request.body).get("ready", False)
    return encode("inference.RepositoryIndexResponse", {"models": server.registry.index(ready)})


async def load(server: Server, request: GrpcRequest) -> bytes:
    message = decode("inference.RepositoryModelLoadRequest", request.body)
    name, parameters = _model(message), _parameters(message)
    config, files = config_parameter(parameters), file_parameters(parameters, bytes_parameter)
    try:
        await server.control.load(name, config, files)
    except LoadFailed as error:
        raise LoadFailed(f"failed to load '{name}': {error}") from None
    return encode("inference.RepositoryModelLoadResponse", {"model_name": name, "isLoaded": True})


async def unload(server: Server, request: GrpcRequest) -> bytes:
    message = decode("inference.RepositoryModelUnloadRequest", request.body)
    name = _model(message)
    dependents = _parameters(message).get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise BadRequest(f"parameters.unload_dependents = {dependents!r}, must be true or false")
    await server.control.unload(name, dependents)
    return encode("inference.RepositoryModelUnloadResponse", {"model_name": name, "isUnloaded": True})


def _model(message: Message) -> str:
    """Return the model name; KServe's message has it in the field that Triton uses for the repository."""
    name: str = message.get("model_name") or message.get("repository_name", "")
    if not valid_model_name(name):
        raise BadRequest(
            f"model_name = {name[:100]!r} is not valid: it must be one path segment without control characters"
        )
    return name


def _parameters(message: Message) -> dict[str, Any]:
    """Return the parameters as plain values; None for one without a value."""
    return {key: next(iter(value.values()), None) for key, value in message.get("parameters", {}).items()}
