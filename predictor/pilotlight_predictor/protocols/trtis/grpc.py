"""`nvidia.inferenceserver.GRPCService`, also as `GRPCServer`: the TRTIS protocol over gRPC.

All generations have the same field numbers with different wire types: the version is text before 0.9 and a number
since; field 2 of an input is a byte size before 0.11 and packed dims since. Admitted calls end with the gRPC status OK;
`request_status` in the message reports success or failure.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire import protobuf
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.protobuf_codec import Message, decode, encode, limited_fields, unpack_varints
from pilotlight_predictor.core.requests import NEWEST
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest, Method, Service, UnaryHandler, message_handler
from pilotlight_predictor.frontends.grpc.ordered_stream import unary_stream
from pilotlight_predictor.frontends.http.messages import HttpResponse
from pilotlight_predictor.frontends.http.router import error_response
from pilotlight_predictor.protocols.run_inference import is_long, off_loop
from pilotlight_predictor.protocols.trtis.handlers import failure, find, is_ready, run_profiler, server_status, success
from pilotlight_predictor.protocols.trtis.request import Header, decode_parts, make_header, signature
from pilotlight_predictor.protocols.trtis.response import describe
from pilotlight_predictor.protocols.trtis.text_protobuf import (
    PACKAGE,
    REQUEST_STATUS,
    RESPONSE_HEADER,
    RESPONSE_HEADER_1_0,
    Values,
)
from pilotlight_predictor.protocols.v2.grpc.infer_methods import LONG, MAX_AHEAD, run
from pilotlight_predictor.protocols.v2.grpc.infer_request import read_version
from pilotlight_predictor.server.handler_context import Server

FAILED: Final = f"{PACKAGE}.ProfileResponse"  # which has a status alone


class InferMessage(NamedTuple):
    model: str
    version: int
    header: Header
    parts: list[memoryview]


def read_infer(message: Buffer) -> InferMessage:
    model, version, header = "", NEWEST, memoryview(b"")
    parts: list[memoryview] = []
    for number, _, value in limited_fields(memoryview(message)):
        if number == 1:
            model = protobuf.text(value, "model_name")
        elif number == 2:
            version = _version(value)
        elif number == 3:
            header = protobuf.payload(value, "meta_data")
        elif number == 4:
            parts.append(protobuf.payload(value, "raw_input"))
    return InferMessage(model, version, _header(header), parts)


def _version(value: int | memoryview) -> int:
    """Return the version; -1 is the newest in every generation."""
    if isinstance(value, int):
        version = protobuf.signed(value)
        if version < NEWEST:
            raise BadRequest(f"version = {version}, must be a number of 0 or more, or -1 for the newest")
        return version
    text = protobuf.text(value, "version")
    return NEWEST if text == "-1" else read_version(text)


def _header(view: memoryview) -> Header:
    values: dict[str, Any] = {"input": [], "output": []}
    names = {1: "batch_size", 4: "correlation_id", 5: "id", 6: "flags"}
    for number, _, value in limited_fields(view):
        if number == 2:
            values["input"].append(_input(protobuf.payload(value, "input")))
        elif number == 3:
            values["output"].append(decode(f"{PACKAGE}.InferRequestHeader.Output", protobuf.payload(value, "output")))
        elif number in names:
            values[names[number]] = protobuf.number(value, names[number])
    return make_header(values)


def _input(view: memoryview) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, _, value in limited_fields(view):
        if number == 1:
            values["name"] = protobuf.text(value, "input.name")
        elif number == 2 and isinstance(value, int):
            values["byte_size"] = value
        elif number == 2:
            dims = unpack_varints(protobuf.payload(value, "input.dims"), "input.dims")
            values["dims"] = [protobuf.signed(dim) for dim in dims.tolist()]
        elif number == 3:
            values["batch_byte_size"] = protobuf.number(value, "input.batch_byte_size")
    return values


def write_infer(header: Header, status: Values, values: Values, blobs: Sequence[Buffer]) -> bytes:
    """Encode an InferResponse; `raw_output` has an entry for each output, empty for classifications."""
    table = RESPONSE_HEADER if header.old else RESPONSE_HEADER_1_0
    pieces: list[Buffer] = [
        protobuf.delimited(1, encode(REQUEST_STATUS, status)),
        protobuf.delimited(2, encode(table, values)),
    ]
    raw = iter(blobs)
    for output in values["output"]:
        blob = next(raw) if "raw" in output else b""
        pieces += (protobuf.tag(3, protobuf.BYTES), protobuf.varint(len(blob)), blob)
    return b"".join(pieces)


def status(server: Server, message: Message) -> Message:
    status = server_status(server, message.get("model_name") or None)
    return {"server_status": status, "request_status": success(server)}


def health(server: Server, message: Message) -> Message:
    mode = message.get("mode", "")
    if mode not in {"live", "ready"}:
        raise BadRequest(f"mode = '{mode[:50]}', must be live or ready")
    return {"request_status": success(server), "health": mode == "live" or is_ready(server)}


async def profile(server: Server, message: Message) -> Message:
    """Start or stop the profiler; the table of a stop is sent as the message of the request status."""
    command = message.get("cmd", "")
    if command not in {"start", "stop"}:
        raise BadRequest(f"cmd = '{command[:50]}', must be start or stop")
    table = await server.codecs.run(lambda: run_profiler(command))
    return {"request_status": {**success(server), "msg": table}}


async def infer(server: Server, request: GrpcRequest) -> bytes:
    long = len(request.body) >= LONG
    message = await off_loop(server, long, lambda: read_infer(request.body))
    request.params = {"model": message.model}
    served = request.served = find(server, message.model, message.version)
    batched = served.config.max_batch_size > 0
    known = signature(served.name, served.inputs, served.outputs, batched)
    read = partial(decode_parts, message.header, known, message.version, message.parts)
    infer_request = await off_loop(server, long, read)
    infer_request.request_id = request.headers.get(HEADER_REQUEST_ID, "")
    response = await run(server, served, infer_request)

    def respond() -> bytes:
        blobs, values = describe(message.header, response, served.labels, batched=batched)
        return write_infer(message.header, success(server), values, blobs)

    return await off_loop(server, is_long(response, as_text=False), respond)


def _with_errors(handler: UnaryHandler) -> UnaryHandler:
    """Return errors of the handler as messages, with their status for the metrics in the request."""

    async def respond(server: Server, request: GrpcRequest) -> bytes:
        try:
            outcome = handler(server, request)
            return outcome if isinstance(outcome, bytes) else await outcome
        except protobuf.MalformedMessage as error:
            return _failed(request, BadRequest(str(error)))
        except Exception as error:
            return _failed(request, error)

    return respond


def _failed(request: GrpcRequest, error: Exception) -> bytes:
    reported: list[PredictorError] = []

    def report(cause: PredictorError) -> HttpResponse:
        reported.append(cause)
        return HttpResponse(cause.status)

    request.status = error_response(report, error, request).status
    return encode(FAILED, {"request_status": failure(reported[0])})


_METHODS = (
    Method("Status", Action.READ, _with_errors(message_handler(PACKAGE, "Status", status))),
    Method("Profile", Action.ADMIN, _with_errors(message_handler(PACKAGE, "Profile", profile))),
    Method("Health", Action.HEALTH, _with_errors(message_handler(PACKAGE, "Health", health))),
    Method("Infer", Action.INFER, _with_errors(infer)),
    # Of 1.0: responses in the order of the requests; an error is the response to its request.
    Method("StreamInfer", Action.INFER, _with_errors(infer), unary_stream(MAX_AHEAD)),
)
SERVICES = tuple(Service(f"{PACKAGE}.{name}", "grpc-trtis", _METHODS) for name in ("GRPCService", "GRPCServer"))
