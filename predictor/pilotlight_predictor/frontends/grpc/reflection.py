"""Server reflection, v1 and v1alpha, with which tools such as grpcurl work without .proto files."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from pilotlight_predictor.core.message_types import ProtoFile, proto_files
from pilotlight_predictor.core.protobuf_codec import Message, decode, encode
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc import services
from pilotlight_predictor.frontends.grpc.dispatcher import (
    GrpcRequest,
    Messages,
    Method,
    Service,
    StreamHandler,
    UnaryCall,
)
from pilotlight_predictor.server.handler_context import Server

NOT_FOUND: Final = 5  # of google.rpc.Code


def answer(request: Message) -> dict[str, Any]:
    """Return the ServerReflectionResponse of a request, as a dictionary."""
    if "list_services" in request:
        names = sorted(service.name for service in services())
        return {"list_services_response": {"service": [{"name": name} for name in names]}}
    files = proto_files()
    if "file_by_filename" in request:
        file = files.get(request["file_by_filename"])
    else:
        symbol = request.get("file_containing_symbol", "")
        file = next((each for each in files.values() if symbol in each.symbols), None)
    if file is None:
        return {"error_response": {"error_code": NOT_FOUND, "error_message": "unknown file or symbol"}}
    return {"file_descriptor_response": {"file_descriptor_proto": [each.raw for each in _with_needs(file)]}}


def _with_needs(file: ProtoFile) -> Iterator[ProtoFile]:
    yield file
    for name in file.needs:
        yield from _with_needs(proto_files()[name])


def _info(package: str) -> StreamHandler:
    async def info(_: Server, __: GrpcRequest, messages: Messages, ___: UnaryCall) -> AsyncIterator[bytes]:
        async for message in messages:
            request = decode(f"{package}.ServerReflectionRequest", message)
            response = {"valid_host": request.get("host", ""), "original_request": request, **answer(request)}
            yield encode(f"{package}.ServerReflectionResponse", response)

    return info


SERVICES = tuple(
    Service(
        f"{package}.ServerReflection",
        "grpc-reflection",
        (Method("ServerReflectionInfo", Action.READ, stream=_info(package)),),
    )
    for package in ("grpc.reflection.v1", "grpc.reflection.v1alpha")
)
