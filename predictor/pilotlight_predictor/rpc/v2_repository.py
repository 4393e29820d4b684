"""The model-repository extension over gRPC: list, load, unload. Parameters mean what they mean over HTTP."""

from typing import Any

from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.repository.load_parameters import bytes_of, config_of, files_of
from pilotlight_predictor.repository.names import valid_model_name
from pilotlight_predictor.rpc.messages import Message, decode, encode
from pilotlight_predictor.rpc.service import RpcCall
from pilotlight_predictor.server import Server


def index(server: Server, call: RpcCall) -> bytes:
    ready = decode("inference.RepositoryIndexRequest", call.body).get("ready", False)
    return encode("inference.RepositoryIndexResponse", {"models": server.registry.index(ready)})


async def load(server: Server, call: RpcCall) -> bytes:
    request = decode("inference.RepositoryModelLoadRequest", call.body)
    name, parameters = _model(request), _parameters(request)
    config, files = config_of(parameters), files_of(parameters, bytes_of)
    try:
        await server.control.load(name, config, files)
    except LoadFailed as error:
        raise LoadFailed(f"failed to load '{name}': {error}") from None
    return encode("inference.RepositoryModelLoadResponse", {"model_name": name, "isLoaded": True})


async def unload(server: Server, call: RpcCall) -> bytes:
    request = decode("inference.RepositoryModelUnloadRequest", call.body)
    name = _model(request)
    dependents = _parameters(request).get("unload_dependents", False)
    if not isinstance(dependents, bool):
        raise BadRequest(f"parameters.unload_dependents = {dependents!r}, must be true or false")
    await server.control.unload(name, dependents)
    return encode("inference.RepositoryModelUnloadResponse", {"model_name": name, "isUnloaded": True})


def _model(request: Message) -> str:
    """KServe's message has the model's name where Triton's has the repository's, and nothing else."""
    name: str = request.get("model_name") or request.get("repository_name", "")
    if not valid_model_name(name):
        raise BadRequest(
            f"model_name = {name[:100]!r} is not valid: it must be one path segment without control characters"
        )
    return name


def _parameters(request: Message) -> dict[str, Any]:
    """Each holds one of the kinds; one without any holds nothing."""
    return {key: next(iter(value.values()), None) for key, value in request.get("parameters", {}).items()}
