"""`nvidia.inferenceserver.GRPCService`, also as `GRPCServer`: the TRTIS protocol over gRPC.

Admitted calls end with the gRPC status OK; `request_status` in the message reports success or failure.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import HttpResponse
from pilotlight_predictor.dispatch import error_response
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.protocol.trtis_request import decode_parts, signature
from pilotlight_predictor.protocol.trtis_response import describe
from pilotlight_predictor.protocol.trtis_wire import write_binary
from pilotlight_predictor.routes.trtis_calls import failure, find, is_ready, server_status, success
from pilotlight_predictor.routes.trtis_profile import run_command
from pilotlight_predictor.rpc.answering import unary_in_order
from pilotlight_predictor.rpc.service import GrpcRequest, Messages, Method, Responses, Service, UnaryCall
from pilotlight_predictor.rpc.trtis_messages import (
    HEALTH_RESPONSE,
    ONLY_STATUS,
    STATUS_RESPONSE,
    read_infer,
    read_text,
    write_infer,
)
from pilotlight_predictor.rpc.v2_infer import LONG, MAX_AHEAD, run
from pilotlight_predictor.server import Server

PACKAGE: Final = "nvidia.inferenceserver"
TrtisHandler = Callable[[Server, GrpcRequest], Awaitable[bytes]]


async def status(server: Server, request: GrpcRequest) -> bytes:
    model = read_text(request.body, "model_name") or None
    response = {"server_status": server_status(server, model), "request_status": success(server)}
    return write_binary(response, STATUS_RESPONSE)


async def health(server: Server, request: GrpcRequest) -> bytes:
    mode = read_text(request.body, "mode")
    if mode not in {"live", "ready"}:
        raise BadRequest(f"mode = '{mode[:50]}', must be live or ready")
    response = {"request_status": success(server), "health": mode == "live" or is_ready(server)}
    return write_binary(response, HEALTH_RESPONSE)


async def profile(server: Server, request: GrpcRequest) -> bytes:
    """Start or stop the profiler; the table of a stop is sent as the message of the request status."""
    command = read_text(request.body, "cmd")
    if command not in {"start", "stop"}:
        raise BadRequest(f"cmd = '{command[:50]}', must be start or stop")
    table = await server.codecs.run(lambda: run_command(command))
    return write_binary({"request_status": {**success(server), "msg": table}}, ONLY_STATUS)


async def infer(server: Server, request: GrpcRequest) -> bytes:
    message = read_infer(request.body)
    request.params = {"model": message.model}
    served = request.served = find(server, message.model, message.version)
    batched = served.config.max_batch_size > 0
    known = signature(served.name, served.inputs, served.outputs, batched)
    if len(request.body) < LONG:
        infer_request = decode_parts(message.header, known, message.version, message.parts)
    else:
        infer_request = await server.codecs.run(
            lambda: decode_parts(message.header, known, message.version, message.parts)
        )
    infer_request.request_id = request.headers.get(HEADER_REQUEST_ID, "")
    response = await run(server, served, infer_request)
    blobs, values = describe(message.header, response, served.labels, batched=batched)
    return write_infer(message.header, success(server), values, blobs)


def stream(_: Server, request: GrpcRequest, messages: Messages, call_unary: UnaryCall) -> Responses:
    """StreamInfer of 1.0: responses in the order of the requests; an error is the response to its request."""
    return unary_in_order(request, messages, call_unary, MAX_AHEAD)


def _with_errors(handler: TrtisHandler) -> TrtisHandler:
    """Return errors of the handler as messages, with their status for the metrics in the request."""

    async def respond(server: Server, request: GrpcRequest) -> bytes:
        try:
            return await handler(server, request)
        except Exception as error:
            return _failed(request, error)

    return respond


def _failed(request: GrpcRequest, error: Exception) -> bytes:
    reported: list[PredictorError] = []

    def report(cause: PredictorError) -> HttpResponse:
        reported.append(cause)
        return HttpResponse(cause.status)

    request.status = error_response(report, error, request).status
    return write_binary({"request_status": failure(reported[0])}, ONLY_STATUS)


_METHODS = (
    Method("Status", Action.READ, _with_errors(status)),
    Method("Profile", Action.ADMIN, _with_errors(profile)),
    Method("Health", Action.HEALTH, _with_errors(health)),
    Method("Infer", Action.INFER, _with_errors(infer)),
    Method("StreamInfer", Action.INFER, _with_errors(infer), stream),
)
SERVICES = tuple(Service(f"{PACKAGE}.{name}", "grpc-trtis", _METHODS) for name in ("GRPCService", "GRPCServer"))
