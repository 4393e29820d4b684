"""`InferenceService`: Predict and PredictStream, what routes/predict.py says over HTTP, under the same limits.

Metadata says what the messages have no field for: `x-model-name`, and `x-sticky-key` of an A/B test.
"""

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Final

import numpy as np

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.access import Action
from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.protocol.predict_request import MAX_NUMBERS, Asked, Invalid, Part, checked
from pilotlight_predictor.routes.predict import STICKY_HEADER, plan
from pilotlight_predictor.routes.predict_run import NAME
from pilotlight_predictor.routes.predict_stream import AHEAD
from pilotlight_predictor.rpc.answering import Outlet, in_order
from pilotlight_predictor.rpc.messages import decode, encode
from pilotlight_predictor.rpc.service import Messages, Method, RpcCall, Service, Single
from pilotlight_predictor.rpc.wire import delimited
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.tensors import bf16_to_float

MODEL_HEADER: Final = "x-model-name"
MAX_LENGTH: Final = 5 * MAX_NUMBERS + 4096  # bytes: a number takes five where a client does not pack them


async def predict(server: Server, call: RpcCall) -> bytes:
    served, (part,) = plan(server, _asked(call), call.header(STICKY_HEADER))
    call.served = served
    part.request.request_id = call.header(HEADER_REQUEST_ID)
    response = await _run(server, served, part)
    told = {
        "model_version": server.versions.label(served.name, served.version),
        "latency_ms": (perf_counter() - call.started) * 1000,
    }
    return delimited(1, _numbers(response)) + encode("PredictResponse", told)


def predict_stream(_: Server, call: RpcCall, messages: Messages, single: Single) -> AsyncIterator[bytes]:
    """A message that cannot be answered ends the stream with its status: there is no field to say it in."""

    async def answer(message: Buffer, _: Outlet) -> bytes:
        asked = call.another()
        asked.body = message
        return await single(asked)

    return in_order(messages, answer, AHEAD)


def _asked(call: RpcCall) -> Asked:
    if len(call.body) > MAX_LENGTH:
        raise Invalid(f"inputs has more than {MAX_NUMBERS} numbers: the message has {len(call.body)} bytes")
    message = decode("PredictRequest", call.body)
    inputs, version = message.get("inputs", []), message.get("model_version", "")
    return checked(Asked([inputs], False, call.header(MODEL_HEADER), version))


async def _run(server: Server, served: ServedVersion, part: Part) -> InferResponse:
    """A call that is cancelled, by its client or its deadline, gives its place back."""
    answered: asyncio.Future[InferResponse | Exception] = asyncio.get_running_loop().create_future()

    def done(result: InferResponse | Exception) -> None:
        if not answered.done():
            answered.set_result(result)

    server.metrics.in_flight += 1
    try:
        ticket = served.infer(part.request, done, server.predict_limits)
        try:
            result = await answered
        except asyncio.CancelledError:
            ticket.cancel()
            raise
    finally:
        server.metrics.in_flight -= 1
    if isinstance(result, Exception):
        raise result
    return result


def _numbers(response: InferResponse) -> bytes:
    """The first output, flat, as floats: what the message has room for."""
    name, tensor = next(iter(response.outputs.items()))
    if tensor.datatype == "BYTES":
        raise Invalid(f"output '{name}' of model '{response.model}' is text; ask for it with POST /predict")
    array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype="<f4").tobytes()


SERVICES = (
    Service(
        "InferenceService",
        NAME,
        (
            Method("Predict", Action.INFER, predict),
            Method("PredictStream", Action.INFER, predict, predict_stream),
        ),
    ),
)
