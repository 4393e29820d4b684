"""Shared-memory extensions of V2 over gRPC."""

from pilotlight_predictor.access import Action
from pilotlight_predictor.errors import NotFound, Unsupported
from pilotlight_predictor.routes.v2_shared_memory import NO_CUDA, NO_SUCH_CUDA
from pilotlight_predictor.rpc.messages import decode, encode
from pilotlight_predictor.rpc.service import GrpcRequest, Method
from pilotlight_predictor.server import Server


def status(server: Server, request: GrpcRequest) -> bytes:
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


def nothing(_: Server, __: GrpcRequest) -> bytes:
    return b""


def refuse_cuda(_: Server, __: GrpcRequest) -> bytes:
    raise Unsupported(NO_CUDA)


METHODS = (
    Method("SystemSharedMemoryStatus", Action.ADMIN, status),
    Method("SystemSharedMemoryRegister", Action.ADMIN, register),
    Method("SystemSharedMemoryUnregister", Action.ADMIN, unregister),
    Method("CudaSharedMemoryStatus", Action.ADMIN, no_regions),
    Method("CudaSharedMemoryRegister", Action.ADMIN, refuse_cuda),
    Method("CudaSharedMemoryUnregister", Action.ADMIN, nothing),
)
