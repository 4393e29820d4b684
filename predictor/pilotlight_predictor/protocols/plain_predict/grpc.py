"""`InferenceService` with Predict and PredictStream: the /predict protocol over gRPC, with the same limits.

The metadata `x-model-name` and `x-sticky-key` (of A/B tests) stand for what the messages have no field for.
"""

from time import perf_counter
from typing import Final

import numpy as np

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight.wire.protobuf import delimited
from pilotlight_predictor.core.protobuf_codec import decode, encode
from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.core.tensors import bf16_to_float
from pilotlight_predictor.frontends.auth import Action
from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest, Method, Service
from pilotlight_predictor.frontends.grpc.ordered_stream import unary_stream
from pilotlight_predictor.protocols.plain_predict.batch_and_stream import MAX_IN_FLIGHT, NAME
from pilotlight_predictor.protocols.plain_predict.codec import MAX_NUMBERS, InvalidInput, PredictRequest, check_rows
from pilotlight_predictor.protocols.plain_predict.routes import STICKY_HEADER, choose_version, plan
from pilotlight_predictor.protocols.v2.grpc.infer_methods import run
from pilotlight_predictor.server.handler_context import Server

MODEL_HEADER: Final = "x-model-name"
MAX_LENGTH: Final = 5 * MAX_NUMBERS + 4096  # bytes: a number takes five where a client does not pack them


async def predict(server: Server, request: GrpcRequest) -> bytes:
    if len(request.body) > MAX_LENGTH:
        raise InvalidInput(f"inputs has more than {MAX_NUMBERS} numbers: the message has {len(request.body)} bytes")
    message = decode("PredictRequest", request.body)
    inputs, version = message.get("inputs", []), message.get("model_version", "")
    predict_request = check_rows(PredictRequest([inputs], False, request.header(MODEL_HEADER), version))
    served = request.served = choose_version(server, predict_request, request.header(STICKY_HEADER))
    (part,) = plan(served, predict_request)
    part.request.request_id = request.header(HEADER_REQUEST_ID)
    response = await run(server, served, part.request, server.predict_limits)
    fields = {
        "model_version": server.versions.label(served.name, served.version),
        "latency_ms": (perf_counter() - request.started) * 1000,
    }
    return delimited(1, _numbers(response)) + encode("PredictResponse", fields)


def _numbers(response: InferResponse) -> bytes:
    """Return the first output, flattened, as packed floats."""
    name, tensor = next(iter(response.outputs.items()))
    if tensor.datatype == "BYTES":
        raise InvalidInput(f"output '{name}' of model '{response.model}' is text; request it with POST /predict")
    array = bf16_to_float(tensor.array) if tensor.datatype == "BF16" else tensor.array
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype="<f4").tobytes()


_METHODS = (
    Method("Predict", Action.INFER, predict),
    # In order; an error ends the stream with its status, since the messages have no field for it.
    Method("PredictStream", Action.INFER, predict, unary_stream(MAX_IN_FLIGHT)),
)
SERVICES = (Service("InferenceService", NAME, _METHODS),)
