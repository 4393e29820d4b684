"""`inference.GRPCInferenceService`: V2 over gRPC with Triton's additions. What it says is what routes/v2.py says."""

from typing import Any, Final

from pilotlight_predictor.access import Action
from pilotlight_predictor.errors import BadRequest, NotFound, PredictorError
from pilotlight_predictor.routes.v2 import EXTENSIONS
from pilotlight_predictor.rpc import v2_infer, v2_logging, v2_repository, v2_shared_memory, v2_trace
from pilotlight_predictor.rpc.infer_head import read_version
from pilotlight_predictor.rpc.messages import Message, decode, encode
from pilotlight_predictor.rpc.service import Method, RpcCall, Service
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.tensors import TensorSpec

PACKAGE: Final = "inference"


def server_live(_: Server, __: RpcCall) -> bytes:
    return encode("inference.ServerLiveResponse", {"live": True})


def server_ready(server: Server, _: RpcCall) -> bytes:
    return encode("inference.ServerReadyResponse", {"ready": server.readiness().ready})


def model_ready(server: Server, call: RpcCall) -> bytes:
    """A model that is unknown, loading or broken is not ready: an answer, and no error."""
    request = decode("inference.ModelReadyRequest", call.body)
    try:
        ready = _find(server, request).executor.alive
    except BadRequest:
        raise
    except PredictorError:
        ready = False
    return encode("inference.ModelReadyResponse", {"ready": ready})


def server_metadata(server: Server, _: RpcCall) -> bytes:
    told = {"name": server.name, "version": server.version, "extensions": EXTENSIONS}
    return encode("inference.ServerMetadataResponse", told)


def model_metadata(server: Server, call: RpcCall) -> bytes:
    request = decode("inference.ModelMetadataRequest", call.body)
    served = _find(server, request)
    versions = [served] if request.get("version") else server.registry.served(served.name)
    told = {
        "name": served.name,
        "versions": [str(each.version) for each in versions],
        "platform": served.config.platform or served.config.backend,
        "inputs": [_tensor(spec) for spec in served.inputs],
        "outputs": [_tensor(spec) for spec in served.outputs],
    }
    return encode("inference.ModelMetadataResponse", told)


def model_config(server: Server, call: RpcCall) -> bytes:
    served = _find(server, decode("inference.ModelConfigRequest", call.body))
    return encode("inference.ModelConfigResponse", {"config": served.config.raw})


def model_statistics(server: Server, call: RpcCall) -> bytes:
    """Of a version, of all versions of a model, or of all models."""
    request = decode("inference.ModelStatisticsRequest", call.body)
    if request.get("name"):
        served = _find(server, request)
        versions = [served] if request.get("version") else server.registry.served(served.name)
        told: dict[str, Any] = {"model_stats": [each.stats.as_v2() for each in versions]}
    else:
        told = server.metrics.statistics()
    return encode("inference.ModelStatisticsResponse", told)


def _find(server: Server, request: Message) -> ServedVersion:
    name = request.get("name", "")
    if not name:
        raise NotFound("name is empty, must be that of a model")
    return server.find(name, read_version(request.get("version", "")))


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
