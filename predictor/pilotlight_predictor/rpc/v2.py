"""`inference.GRPCInferenceService`: the V2 protocol over gRPC with Triton's extensions."""

from typing import Any, Final

from pilotlight_predictor.access import Action
from pilotlight_predictor.errors import BadRequest, NotFound, PredictorError
from pilotlight_predictor.routes.v2 import EXTENSIONS
from pilotlight_predictor.rpc import v2_infer, v2_logging, v2_repository, v2_shared_memory, v2_trace
from pilotlight_predictor.rpc.infer_head import read_version
from pilotlight_predictor.rpc.messages import Message, decode, encode
from pilotlight_predictor.rpc.service import GrpcRequest, Method, Service
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.tensors import TensorSpec

PACKAGE: Final = "inference"


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
    served = _find(server, message)
    versions = [served] if message.get("version") else server.registry.served(served.name)
    response = {
        "name": served.name,
        "versions": [str(each.version) for each in versions],
        "platform": served.config.platform or served.config.backend,
        "inputs": [_tensor(spec) for spec in served.inputs],
        "outputs": [_tensor(spec) for spec in served.outputs],
    }
    return encode("inference.ModelMetadataResponse", response)


def model_config(server: Server, request: GrpcRequest) -> bytes:
    served = _find(server, decode("inference.ModelConfigRequest", request.body))
    return encode("inference.ModelConfigResponse", {"config": served.config.raw})


def model_statistics(server: Server, request: GrpcRequest) -> bytes:
    """Return statistics of one version, all versions of a model, or all models."""
    message = decode("inference.ModelStatisticsRequest", request.body)
    if message.get("name"):
        served = _find(server, message)
        versions = [served] if message.get("version") else server.registry.served(served.name)
        response: dict[str, Any] = {"model_stats": [each.stats.as_v2() for each in versions]}
    else:
        response = server.metrics.statistics()
    return encode("inference.ModelStatisticsResponse", response)


def _find(server: Server, message: Message) -> ModelVersion:
    name = message.get("name", "")
    if not name:
        raise NotFound("name is empty, must be that of a model")
    return server.find(name, read_version(message.get("version", "")))


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}


SERVICES = (
    Service(
        f"{PACKAGE}.GRPCInferenceService",
        "grpc-v2",
        (
            Method("ServerLive", Action.HEALTH, server_live),
            Method("ServerReady", Action.HEALTH, server_ready),
            Method("ModelReady", Action.HEALTH, model_ready),
            Method("ServerMetadata", Action.READ, server_metadata),
            Method("ModelMetadata", Action.READ, model_metadata),
            Method("ModelInfer", Action.INFER, v2_infer.infer),
            Method("ModelStreamInfer", Action.INFER, v2_infer.infer_streamed, v2_infer.stream),
            Method("ModelConfig", Action.READ, model_config),
            Method("ModelStatistics", Action.READ, model_statistics),
            Method("RepositoryIndex", Action.ADMIN, v2_repository.index),
            Method("RepositoryModelLoad", Action.ADMIN, v2_repository.load),
            Method("RepositoryModelUnload", Action.ADMIN, v2_repository.unload),
            *v2_shared_memory.METHODS,
            Method("TraceSetting", Action.ADMIN, v2_trace.trace_setting),
            Method("LogSettings", Action.ADMIN, v2_logging.log_settings),
        ),
    ),
)
