"""`nvidia.inferenceserver.GRPCService`, also as `GRPCServer`: the TensorRT Inference Server over gRPC.

What it says is what routes/trtis_calls.py says. Whatever came through the gate is answered with the OK of gRPC;
`request_status` in the message tells of success or failure.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Reply
from pilotlight_predictor.dispatch import error_reply
from pilotlight_predictor.errors import BadRequest, PredictorError
from pilotlight_predictor.protocol.trtis_request import decode_parts, signature
from pilotlight_predictor.protocol.trtis_response import describe
from pilotlight_predictor.protocol.trtis_wire import write_binary
from pilotlight_predictor.routes.trtis_calls import failure, find, is_ready, server_status, success
from pilotlight_predictor.routes.trtis_profile import obey
from pilotlight_predictor.rpc.answering import Outlet, in_order
from pilotlight_predictor.rpc.service import Answers, Messages, Method, RpcCall, Service, Single
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
Answering = Callable[[Server, RpcCall], Awaitable[bytes]]


async def status(server: Server, call: RpcCall) -> bytes:
    model = read_text(call.body, "model_name") or None
    told = {"server_status": server_status(server, model), "request_status": success(server)}
    return write_binary(told, STATUS_RESPONSE)


async def health(server: Server, call: RpcCall) -> bytes:
    mode = read_text(call.body, "mode")
    if mode not in {"live", "ready"}:
        raise BadRequest(f"mode = '{mode[:50]}', must be live or ready")
    told = {"request_status": success(server), "health": mode == "live" or is_ready(server)}
    return write_binary(told, HEALTH_RESPONSE)


async def profile(server: Server, call: RpcCall) -> bytes:
    """The table that a stop gives has no field of its own, so it is the message of the success."""
    command = read_text(call.body, "cmd")
    if command not in {"start", "stop"}:
        raise BadRequest(f"cmd = '{command[:50]}', must be start or stop")
    table = await server.codecs.run(lambda: obey(command))
    return write_binary({"request_status": {**success(server), "msg": table}}, ONLY_STATUS)


async def infer(server: Server, call: RpcCall) -> bytes:
    asked = read_infer(call.body)
    call.params = {"model": asked.model}
    served = call.served = find(server, asked.model, asked.version)
    batched = served.config.max_batch_size > 0
    known = signature(served.name, served.inputs, served.outputs, batched)
    if len(call.body) < LONG:
        request = decode_parts(asked.header, known, asked.version, asked.parts)
    else:
        request = await server.codecs.run(lambda: decode_parts(asked.header, known, asked.version, asked.parts))
    request.request_id = call.headers.get(HEADER_REQUEST_ID, "")
    response = await run(server, served, request)
    blobs, values = describe(asked.header, response, served.labels, batched=batched)
    return write_infer(asked.header, success(server), values, blobs)


def stream(_: Server, call: RpcCall, messages: Messages, single: Single) -> Answers:
    """StreamInfer of 1.0: answers in the order of the requests; one that fails says so in its own answer."""

    async def one(message: Buffer, _: Outlet) -> bytes:
        asked = call.another()
        asked.body = message
        return await single(asked)

    return in_order(messages, one, MAX_AHEAD)


def _told(answer: Answering) -> Answering:
    """Failures become messages; what they count as is left in the call."""

    async def answered(server: Server, call: RpcCall) -> bytes:
        try:
            return await answer(server, call)
        except Exception as error:
            return _failed(call, error)

    return answered


def _failed(call: RpcCall, error: Exception) -> bytes:
    told: list[PredictorError] = []

    def note(found: PredictorError) -> Reply:
        told.append(found)
        return Reply(found.status)

    call.status = error_reply(note, error, call).status
    return write_binary({"request_status": failure(told[0])}, ONLY_STATUS)


_METHODS = (
    Method("Status", Action.READ, _told(status)),
    Method("Profile", Action.ADMIN, _told(profile)),
    Method("Health", Action.HEALTH, _told(health)),
    Method("Infer", Action.INFER, _told(infer)),
    Method("StreamInfer", Action.INFER, _told(infer), stream),
)
SERVICES = tuple(Service(f"{PACKAGE}.{name}", "grpc-trtis", _METHODS) for name in ("GRPCService", "GRPCServer"))
