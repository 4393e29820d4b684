"""Malformed messages to every gRPC service: a code that is the sender's fault or none's, no hang, no growth."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.predictor.fuzzing import changed, fuzz, unshaken
from tests.serving import RunningServer

V2 = "/inference.GRPCInferenceService/"
TRTIS = "/nvidia.inferenceserver.GRPCService/"
PREDICT = "/InferenceService/"
FINE = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
READS = ("ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex")
MODELS = ("identity_fp32", "identity_bytes", "identity_int64", "matrix", "add_sub", "nobody")
Message = Callable[..., Any]


@pytest.fixture(scope="module")
def target(zoo: Path, serve_module: Callable[..., RunningServer]) -> RunningServer:
    return serve_module(zoo, "--grpc-port", "0", "--rate-limit-enabled=false")


@pytest.fixture(scope="module")
def channel(target: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(grpc_address(target)) as opened:
        yield opened


@pytest.fixture(scope="module")
def messages(message: Message) -> list[bytes]:
    """Good requests for inference, raw and typed, from which the bad ones are made."""
    made = [message("inference.ModelInferRequest", model_name=model, id="1") for model in MODELS]
    for request in made:
        x = request.inputs.add(name="x", datatype="FP32", shape=[2])
        x.contents.fp32_contents.extend([1, 2])
        request.parameters["priority"].int64_param = 1
        request.outputs.add(name="y").parameters["classification"].int64_param = 1
    raw = message("inference.ModelInferRequest", model_name="identity_fp32", raw_input_contents=[bytes(8)])
    raw.inputs.add(name="x", datatype="FP32", shape=[2])
    return [bytes(each.SerializeToString()) for each in (*made, raw)]


def ended(call: Callable[[], Any]) -> str:
    """The code that the call ended with; one that hangs is DEADLINE_EXCEEDED."""
    try:
        call()
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def test_no_message_is_our_mistake(target: RunningServer, channel: grpc.Channel, messages: list[bytes]) -> None:
    infer = channel.unary_unary(f"{V2}ModelInfer")

    @fuzz(600)
    @given(body=changed(messages) | st.binary(max_size=40))
    def holds(body: bytes) -> None:
        assert ended(lambda: infer(body, timeout=60)) in FINE, body

    with unshaken(target, lambda: infer(messages[-1], timeout=60)):
        holds()
    assert infer(messages[-1], timeout=60)


def test_no_stream_is_our_mistake(target: RunningServer, channel: grpc.Channel, messages: list[bytes]) -> None:
    """A stream outlives what is wrong in it: as many answers as requests."""
    stream = channel.stream_stream(f"{V2}ModelStreamInfer")

    @fuzz(120)
    @given(bodies=st.lists(changed(messages), max_size=6))
    def holds(bodies: list[bytes]) -> None:
        assert len(list(stream(iter(bodies), timeout=60))) == len(bodies), bodies

    with unshaken(target, lambda: list(stream(iter(messages[-1:]), timeout=60))):
        holds()


def test_no_question_is_our_mistake(target: RunningServer, channel: grpc.Channel, message: Message) -> None:
    good = [
        bytes(message("inference.ModelMetadataRequest", name=model, version="1").SerializeToString())
        for model in MODELS
    ]

    @fuzz(300)
    @given(method=st.sampled_from(READS), body=changed(good) | st.binary(max_size=20))
    def holds(method: str, body: bytes) -> None:
        assert ended(lambda: channel.unary_unary(f"{V2}{method}")(body, timeout=60)) in FINE, (method, body)

    with unshaken(target, lambda: channel.unary_unary(f"{V2}ServerMetadata")(b"", timeout=60)):
        holds()


def test_no_prediction_is_our_mistake(target: RunningServer, channel: grpc.Channel, message: Message) -> None:
    asked = message("PredictRequest")
    asked.ParseFromString(b"\x0a\x08" + bytes(8))
    good = [bytes(asked.SerializeToString()), b"\x0a\x04" + bytes(4)]
    predict, stream = channel.unary_unary(f"{PREDICT}Predict"), channel.stream_stream(f"{PREDICT}PredictStream")
    chosen = [("x-model-name", "identity_fp32")]

    @fuzz(300)
    @given(bodies=st.lists(changed(good) | st.binary(max_size=20), min_size=1, max_size=3))
    def holds(bodies: list[bytes]) -> None:
        assert ended(lambda: predict(bodies[0], timeout=60, metadata=chosen)) in FINE, bodies
        assert ended(lambda: list(stream(iter(bodies), timeout=60, metadata=chosen))) in FINE, bodies

    with unshaken(target, lambda: ended(lambda: predict(good[0], timeout=60, metadata=chosen))):
        holds()


def test_no_stream_of_the_ancestor_is_our_mistake(
    target: RunningServer, channel: grpc.Channel, message: Message
) -> None:
    request = message("nvidia.inferenceserver.InferRequest", model_name="identity_fp32", raw_input=[bytes(4)])
    request.meta_data.batch_size = 1
    request.meta_data.input.add(name="x", byte_size=4)
    good = [bytes(request.SerializeToString())]
    stream = channel.stream_stream(f"{TRTIS}StreamInfer")

    @fuzz(120)
    @given(bodies=st.lists(changed(good) | st.binary(max_size=30), max_size=6))
    def holds(bodies: list[bytes]) -> None:
        assert len(list(stream(iter(bodies), timeout=60))) == len(bodies), bodies

    with unshaken(target, lambda: list(stream(iter(good), timeout=60))):
        holds()
