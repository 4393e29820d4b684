"""`inference.GRPCInferenceService`: the V2 protocol over gRPC with Triton's extensions.

infer_methods.py has the inferences. The methods for log and trace settings change the given settings, if any, and
return all of them.
"""

from typing import Any

from pilotlight_predictor.core.protobuf_codec import Message, decode, encode
from pilotlight_predictor.errors import BadRequest, NotFound, PredictorError, Unsupported
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest, Method, Service
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.v2.admin import NO_CUDA, NO_SUCH_CUDA, checked_name, load_model, unload_model
from pilotlight_predictor.protocols.v2.grpc import infer_methods
from pilotlight_predictor.protocols.v2.grpc.infer_request import read_version
from pilotlight_predictor.protocols.v2.routes import EXTENSIONS, metadata, statistics
from pilotlight_predictor.repository.load_parameters import bytes_parameter, config_parameter, file_parameters
from pilotlight_predictor.server.handler_context import Server


def index(server: Server, request: GrpcRequest) -> bytes:
    ready = decode("inference.RepositoryIndexRequest", request.body).get("ready", False)
    return encode("inference.RepositoryIndexResponse", {"models": server.registry.index(ready)})


async def load(server: Server, request: GrpcRequest) -> bytes:
    message = decode("inference.RepositoryModelLoadRequest", request.body)
    name, parameters = _model(message), _parameters(message)
    await load_model(server, name, config_parameter(parameters), file_parameters(parameters, bytes_parameter))
    return encode("inference.RepositoryModelLoadResponse", {"model_name": name, "isLoaded": True})


async def unload(server: Server, request: GrpcRequest) -> bytes:
    message = decode("inference.RepositoryModelUnloadRequest", request.body)
    name = _model(message)
    await unload_model(server, name, _parameters(message))
    return encode("inference.RepositoryModelUnloadResponse", {"model_name": name, "isUnloaded": True})


def _model(message: Message) -> str:
    """Return the model name; KServe's message has it in the field that Triton uses for the repository."""
    return checked_name("model_name =", message.get("model_name") or message.get("repository_name", ""))


def _parameters(message: Message) -> dict[str, Any]:
    """Return the parameters as plain values; None for one without a value."""
    return {key: next(iter(value.values()), None) for key, value in message.get("parameters", {}).items()}


def shared_memory_status(server: Server, request: GrpcRequest) -> bytes:
    name = decode("inference.SystemSharedMemoryStatusRequest", request.body).get("name", "")
    regions = {region["name"]: region for region in server.shared_memory.status(name)}
    return encode("inference.SystemSharedMemoryStatusResponse", {"regions": regions})


def register(server: Server, request: GrpcRequest) -> bytes:
    message = decode("inference.SystemSharedMemoryRegisterRequest", request.body)
    offset, size = message.get("offset", 0), message.get("byte_size", 0)
    server.shared_memory.register(message.get("name", ""), message.get("key", ""), offset, size)
    return b""


def unregister(server: Server, request: GrpcRequest) -> bytes:
    name = decode("inference.SystemSharedMemoryUnregisterRequest", request.body).get("name", "")
    server.shared_memory.unregister(name)
    return b""


def no_regions(_: Server, request: GrpcRequest) -> bytes:
    if name := decode("inference.CudaSharedMemoryStatusRequest", request.body).get("name"):
        raise NotFound(f"{NO_SUCH_CUDA}: '{name}'")
    return b""


def refuse_cuda(_: Server, __: GrpcRequest) -> bytes:
    raise Unsupported(NO_CUDA)


SHARED_MEMORY_METHODS = (
    Method("SystemSharedMemoryStatus", Action.ADMIN, shared_memory_status),
    Method("SystemSharedMemoryRegister", Action.ADMIN, register),
    Method("SystemSharedMemoryUnregister", Action.ADMIN, unregister),
    Method("CudaSharedMemoryStatus", Action.ADMIN, no_regions),
    Method("CudaSharedMemoryRegister", Action.ADMIN, refuse_cuda),
    Method("CudaSharedMemoryUnregister", Action.ADMIN, lambda _, __: b""),
)


def log_settings(server: Server, request: GrpcRequest) -> bytes:
    settings = read_log_settings(request)
    return encode_log_settings(server.log_settings.change(settings) if settings else server.log_settings.values())


def read_log_settings(request: GrpcRequest) -> dict[str, Any]:
    entries = decode("inference.LogSettingsRequest", request.body).get("settings", {})
    for key, value in entries.items():
        if not value:
            raise BadRequest(f"settings.{key[:100]} has no value: set one of bool, uint32 or string_param")
    return {key: next(iter(value.values())) for key, value in entries.items()}


def encode_log_settings(settings: dict[str, Any]) -> bytes:
    kinds = {bool: "bool_param", int: "uint32_param"}
    values = {key: {kinds.get(type(value), "string_param"): value} for key, value in settings.items()}
    return encode("inference.LogSettingsResponse", {"settings": values})


def trace_setting(server: Server, request: GrpcRequest) -> bytes:
    settings, name = read_trace_settings(request)
    model = server.find(name).name if name else ""
    return encode_trace_settings(server.traces.change(settings, model) if settings else server.traces.settings(model))


def read_trace_settings(request: GrpcRequest) -> tuple[dict[str, Any], str]:
    """Return the settings, as over HTTP, and the model name; a setting without values is reset (None)."""
    message: Message = decode("inference.TraceSettingRequest", request.body)
    entries = {key: value.get("value", []) for key, value in message.get("settings", {}).items()}
    return {key: values or None for key, values in entries.items()}, message.get("model_name", "")


def encode_trace_settings(settings: dict[str, Any]) -> bytes:
    lists = {key: {"value": value if isinstance(value, list) else [value]} for key, value in settings.items()}
    return encode("inference.TraceSettingResponse", {"settings": lists})


def server_live(_: Server, __: GrpcRequest) -> bytes:
    return encode("inference.ServerLiveResponse", {"live": True})


def server_ready(server: Server, _: GrpcRequest) -> bytes:
    return encode("inference.ServerReadyResponse", {"ready": server.readiness().ready})


def model_ready(server: Server, request: GrpcRequest) -> bytes:
    """Report a model that is unknown, loading or broken as not ready, not as an error."""
    message = decode("inference.ModelReadyRequest", request.body)
    try:
        ready = _find(server, message).executor.alive
    except BadRequest:
        raise
    except PredictorError:
        ready = False
    return encode("inference.ModelReadyResponse", {"ready": ready})


def server_metadata(server: Server, _: GrpcRequest) -> bytes:
    response = {"name": server.name, "version": server.version, "extensions": EXTENSIONS}
    return encode("inference.ServerMetadataResponse", response)


def model_metadata(server: Server, request: GrpcRequest) -> bytes:
    message = decode("inference.ModelMetadataRequest", request.body)
    response = metadata(server, _find(server, message), one_version=bool(message.get("version")))
    return encode("inference.ModelMetadataResponse", response)


def model_config(server: Server, request: GrpcRequest) -> bytes:
    served = _find(server, decode("inference.ModelConfigRequest", request.body))
    return encode("inference.ModelConfigResponse", {"config": served.config.raw})


def model_statistics(server: Server, request: GrpcRequest) -> bytes:
    """Return statistics of one version, all versions of a model, or all models."""
    message = decode("inference.ModelStatisticsRequest", request.body)
    if message.get("name"):
        response = statistics(server, _find(server, message), one_version=bool(message.get("version")))
    else:
        response = server.metrics.statistics()
    return encode("inference.ModelStatisticsResponse", response)


def _find(server: Server, message: Message) -> ModelVersion:
    name = message.get("name", "")
    if not name:
        raise NotFound("name is empty, must be that of a model")
    return server.find(name, read_version(message.get("version", "")))


SERVICES = (
    Service(
        "inference.GRPCInferenceService",
        "grpc-v2",
        (
            Method("ServerLive", Action.HEALTH, server_live),
            Method("ServerReady", Action.HEALTH, server_ready),
            Method("ModelReady", Action.HEALTH, model_ready),
            Method("ServerMetadata", Action.READ, server_metadata),
            Method("ModelMetadata", Action.READ, model_metadata),
            Method("ModelInfer", Action.INFER, infer_methods.infer),
            Method("ModelStreamInfer", Action.INFER, infer_methods.infer_streamed, infer_methods.stream),
            Method("ModelConfig", Action.READ, model_config),
            Method("ModelStatistics", Action.READ, model_statistics),
            Method("RepositoryIndex", Action.ADMIN, index),
            Method("RepositoryModelLoad", Action.ADMIN, load),
            Method("RepositoryModelUnload", Action.ADMIN, unload),
            *SHARED_MEMORY_METHODS,
            Method("TraceSetting", Action.ADMIN, trace_setting),
            Method("LogSettings", Action.ADMIN, log_settings),
        ),
    ),
)
