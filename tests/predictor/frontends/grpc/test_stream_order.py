"""The requests of one stream reach the model in their order, however long they are."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
from tests.onnx_models import write_python
from tests.predictor.in_process_server import House, play
from tritonclient.grpc import service_pb2

from pilotlight_predictor.frontends.grpc.dispatcher import GrpcRequest
from pilotlight_predictor.protocols.v2.grpc.infer_methods import LONG, infer_streamed, stream

NUMBERS = """
import numpy as np

INPUTS = {"x": ("FP32", [-1, -1])}
OUTPUTS = {"y": ("INT64", [-1, 1])}
seen = 0


def predict(x):
    global seen
    seen += len(x)
    return {"y": np.arange(seen - len(x), seen).reshape(-1, 1)}
"""


def message(width: int) -> bytes:
    asked = service_pb2.ModelInferRequest(model_name="numbers", id=str(width))
    asked.inputs.add(name="x", datatype="FP32", shape=[1, width])
    asked.raw_input_contents.append(np.zeros(width, "<f4").tobytes())
    return bytes(asked.SerializeToString())


def number(answer: bytes) -> int:
    told = service_pb2.ModelStreamInferResponse.FromString(answer)
    assert not told.error_message
    return int(np.frombuffer(told.infer_response.raw_output_contents[0], "<i8")[0])


async def each(messages: list[bytes]) -> AsyncIterator[bytes]:
    for one in messages:
        yield one


def test_a_short_request_does_not_overtake_a_long_one(tmp_path: Path) -> None:
    async def scene() -> None:
        write_python(tmp_path, "numbers", NUMBERS)
        server = (await House(tmp_path).start()).server
        call = GrpcRequest("/inference.GRPCInferenceService/ModelStreamInfer", {}, "", lambda: None)
        messages = each([message(width) for width in (1, LONG // 4, 2, LONG // 4 + 1, 3, 4)])
        answers = stream(server, call, messages, lambda one: infer_streamed(server, one))
        numbers = [number(answer) async for answer in answers]
        assert numbers == list(range(numbers[0], numbers[0] + 6))  # loading may have asked it, too

    play(scene())
