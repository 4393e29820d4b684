"""`inference.GRPCInferenceService`: the V2 protocol over gRPC with Triton's extensions.

infer_methods.py has the inferences. The methods for log and trace settings change the given settings, if any, and
return all of them.
"""

from typing import Any, Final

from pilotlight_predictor.core.protobuf_codec import Message
from pilotlight_predictor.errors import BadRequest, NotFound, PredictorError, Unsupported
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc.dispatcher import MessageHandler, Method, Service, message_handler
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.triton_requests import check_load, log_changes, trace_changes
from pilotlight_predictor.protocols.v2.admin import NO_CUDA, NO_SUCH_CUDA, checked_name, load_model, unload_model
from pilotlight_predictor.protocols.v2.grpc import infer_methods
from pilotlight_predictor.protocols.v2.grpc.infer_request import read_version
from pilotlight_predictor.protocols.v2.routes import EXTENSIONS, metadata, statistics
from pilotlight_predictor.repository.load_parameters import bytes_parameter, config_parameter, file_parameters
from pilotlight_predictor.server.handler_context import Server

PACKAGE: Final = "inference"


def index(server: Server, message: Message) -> Message:
    return {"models": server.registry.index(message.get("ready", False))}


async def load(server: Server, message: Message) -> Message:
    name, parameters, config = load_arguments(server, message)
    await load_model(server, name, config, file_parameters(parameters, bytes_parameter))
    return {"model_name": name, "isLoaded": True}


def load_arguments(server: Server, message: Message) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
    """Return the model name, all parameters and the configuration among them. Raise PredictorError."""
    name, parameters = model_name(message), plain_parameters(message)
    if server.settings.server.as_triton:
        check_load(parameters, message.get("repository_name", "") if message.get("model_name") else "")
    return name, parameters, config_parameter(parameters)


async def unload(server: Server, message: Message) -> Message:
    name = model_name(message)
    await unload_model(server, name, plain_parameters(message))
    return {"model_name": name, "isUnloaded": True}


def model_name(message: Message) -> str:
    """Return the model name; KServe's message has it in the field that Triton uses for the repository."""
    return checked_name("model_name =", message.get("model_name") or message.get("repository_name", ""))


def plain_parameters(message: Message) -> dict[str, Any]:
    """Return the parameters as plain values; None for one without a value."""
    return {key: next(iter(value.values()), None) for key, value in message.get("parameters", {}).items()}


def shared_memory_status(server: Server, message: Message) -> Message:
    return {"regions": {region["name"]: region for region in server.shared_memory.status(message.get("name", ""))}}


def register(server: Server, message: Message) -> Message:
    offset, size = message.get("offset", 0), message.get("byte_size", 0)
    server.shared_memory.register(message.get("name", ""), message.get("key", ""), offset, size)
    return {}


def unregister(server: Server, message: Message) -> Message:
    server.shared_memory.unregister(message.get("name", ""))
    return {}


def no_regions(_: Server, message: Message) -> Message:
    if name := message.get("name"):
        raise NotFound(f"{NO_SUCH_CUDA}: '{name}'")
    return {}


def refuse_cuda(_: Server, __: Message) -> Message:
    raise Unsupported(NO_CUDA)


def log_settings(server: Server, message: Message) -> Message:
    settings = read_log_settings(message)
    if server.settings.server.as_triton:
        settings = log_changes(settings, server.log_settings.values())
    return log_settings_message(server.log_settings.change(settings) if settings else server.log_settings.values())


def read_log_settings(message: Message) -> dict[str, Any]:
    entries = message.get("settings", {})
    for key, value in entries.items():
        if not value:
            raise BadRequest(f"settings.{key[:100]} has no value: set one of bool, uint32 or string_param")
    return {key: next(iter(value.values())) for key, value in entries.items()}


def log_settings_message(settings: dict[str, Any]) -> Message:
    kinds = {bool: "bool_param", int: "uint32_param"}
    return {
        "settings": {key: {kinds.get(type(value), "string_param"): value} for key, value in settings.items()}
    }  # fmt: skip


def trace_setting(server: Server, message: Message) -> Message:
    settings, name = read_trace_settings(message)
    model = server.find(name).name if name else ""
    if server.settings.server.as_triton:
        settings = trace_changes(settings, server.traces.settings(model))
    return trace_settings_message(server.traces.change(settings, model) if settings else server.traces.settings(model))


def read_trace_settings(message: Message) -> tuple[dict[str, Any], str]:
    """Return the settings, as over HTTP, and the model name; a setting without values is reset (None)."""
    entries = {key: value.get("value", []) for key, value in message.get("settings", {}).items()}
    return {key: values or None for key, values in entries.items()}, message.get("model_name", "")


def trace_settings_message(settings: dict[str, Any]) -> Message:
    lists = {key: value if isinstance(value, list) else [value] for key, value in settings.items()}
    return {"settings": {key: {"value": values} for key, values in lists.items()}}


def model_ready(server: Server, message: Message) -> Message:
    """Report a model that is unknown, loading or broken as not ready, not as an error."""
    try:
        return {"ready": _find(server, message).executor.alive}
    except BadRequest:
        raise
    except PredictorError:
        return {"ready": False}


def model_metadata(server: Server, message: Message) -> Message:
    return metadata(server, _find(server, message), one_version=bool(message.get("version")))


def model_config(server: Server, message: Message) -> Message:
    return {"config": _find(server, message).config.raw}


def model_statistics(server: Server, message: Message) -> Message:
    """Return statistics of one version, all versions of a model, or all models."""
    if not message.get("name"):
        return server.metrics.statistics()
    return statistics(server, _find(server, message), one_version=bool(message.get("version")))


def _find(server: Server, message: Message) -> ModelVersion:
    name = message.get("name", "")
    if not name:
        raise NotFound("name is empty, must be that of a model")
    return server.find(name, read_version(message.get("version", "")))


def _method(name: str, action: Action, handler: MessageHandler) -> Method:
    return Method(name, action, message_handler(PACKAGE, name, handler))


_METHODS = (
    _method("ServerLive", Action.HEALTH, lambda _, __: {"live": True}),
    _method("ServerReady", Action.HEALTH, lambda server, _: {"ready": server.readiness().ready}),
    _method("ModelReady", Action.HEALTH, model_ready),
    _method(
        "ServerMetadata",
        Action.READ,
        lambda server, _: {"name": server.name, "version": server.version, "extensions": EXTENSIONS},
    ),
    _method("ModelMetadata", Action.READ, model_metadata),
    Method("ModelInfer", Action.INFER, infer_methods.infer),
    Method("ModelStreamInfer", Action.INFER, infer_methods.infer_streamed, infer_methods.stream),
    _method("ModelConfig", Action.READ, model_config),
    _method("ModelStatistics", Action.READ, model_statistics),
    _method("RepositoryIndex", Action.ADMIN, index),
    _method("RepositoryModelLoad", Action.ADMIN, load),
    _method("RepositoryModelUnload", Action.ADMIN, unload),
    _method("SystemSharedMemoryStatus", Action.ADMIN, shared_memory_status),
    _method("SystemSharedMemoryRegister", Action.ADMIN, register),
    _method("SystemSharedMemoryUnregister", Action.ADMIN, unregister),
    _method("CudaSharedMemoryStatus", Action.ADMIN, no_regions),
    _method("CudaSharedMemoryRegister", Action.ADMIN, refuse_cuda),
    _method("CudaSharedMemoryUnregister", Action.ADMIN, lambda _, __: {}),
    _method("TraceSetting", Action.ADMIN, trace_setting),
    _method("LogSettings", Action.ADMIN, log_settings),
)
SERVICES = (Service(f"{PACKAGE}.GRPCInferenceService", "grpc-v2", _METHODS),)
