"""The shared-memory extensions over gRPC; what is said is what routes/v2_shared_memory.py says."""

from pilotlight_predictor.access import Action
from pilotlight_predictor.errors import NotFound, Unsupported
from pilotlight_predictor.routes.v2_shared_memory import NO_CUDA, NO_SUCH_CUDA
from pilotlight_predictor.rpc.messages import decode, encode
from pilotlight_predictor.rpc.service import Method, RpcCall
from pilotlight_predictor.server import Server


def status(server: Server, call: RpcCall) -> bytes:
    name = decode("inference.SystemSharedMemoryStatusRequest", call.body).get("name", "")
    regions = {region["name"]: region for region in server.shared_memory.status(name)}
    return encode("inference.SystemSharedMemoryStatusResponse", {"regions": regions})


def register(server: Server, call: RpcCall) -> bytes:
    asked = decode("inference.SystemSharedMemoryRegisterRequest", call.body)
    offset, size = asked.get("offset", 0), asked.get("byte_size", 0)
    server.shared_memory.register(asked.get("name", ""), asked.get("key", ""), offset, size)
    return b""


def unregister(server: Server, call: RpcCall) -> bytes:
    name = decode("inference.SystemSharedMemoryUnregisterRequest", call.body).get("name", "")
    server.shared_memory.unregister(name)
    return b""


def no_regions(_: Server, call: RpcCall) -> bytes:
    if name := decode("inference.CudaSharedMemoryStatusRequest", call.body).get("name"):
        raise NotFound(f"{NO_SUCH_CUDA}: '{name}'")
    return b""


def nothing(_: Server, __: RpcCall) -> bytes:
    return b""


def refuse_cuda(_: Server, __: RpcCall) -> bytes:
    raise Unsupported(NO_CUDA)


METHODS = (
    Method("SystemSharedMemoryStatus", Action.ADMIN, status),
    Method("SystemSharedMemoryRegister", Action.ADMIN, register),
    Method("SystemSharedMemoryUnregister", Action.ADMIN, unregister),
    Method("CudaSharedMemoryStatus", Action.ADMIN, no_regions),
    Method("CudaSharedMemoryRegister", Action.ADMIN, refuse_cuda),
    Method("CudaSharedMemoryUnregister", Action.ADMIN, nothing),
)
