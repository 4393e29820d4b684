"""A server of two models, asked over our own HTTP/2 by grpcio's clients and by clients that say what they like."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tests.onnx_models import write_identity, write_python
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import RunningServer

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WIDE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
Message = Callable[..., Any]
SLOW = """
import time

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


def predict(x):
    time.sleep(0.02)
    return {"y": x}
"""


@pytest.fixture(scope="module")
def server(serve_module: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder = tmp_path_factory.mktemp("models")
    write_identity(folder, "echo", "FP32")
    write_python(folder, "slow", SLOW)
    return serve_module(folder, "--grpc-port", "0", "--access-log")


@pytest.fixture(scope="module")
def address(server: RunningServer) -> str:
    return grpc_address(server)


@pytest.fixture(scope="module")
def channel(address: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address, options=WIDE) as opened:
        yield opened


@pytest.fixture(scope="module")
def ask(message: Message) -> Callable[..., bytes]:
    def made(values: Any, model: str = "echo") -> bytes:
        array = np.asarray(values, np.float32)
        request = message("inference.ModelInferRequest", model_name=model, raw_input_contents=[array.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=array.shape)
        return bytes(request.SerializeToString())

    return made
