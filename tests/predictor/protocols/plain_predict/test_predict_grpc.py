"""Predict and PredictStream, called by a client that was generated from the capability's own proto."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.onnx_models import write_identity
from tests.predictor.in_process_server import write_times
from tests.serving import ROOT, RunningServer

from pilotlight_predictor.config import parse

PROTO = """
syntax = "proto3";
service InferenceService {
rpc Predict (PredictRequest) returns (PredictResponse);
rpc PredictStream (stream PredictRequest) returns (stream PredictResponse);
}
message PredictRequest {
repeated float inputs = 1;
string model_version = 2;
}
message PredictResponse {
repeated float predictions = 1;
string model_version = 2;
float latency_ms = 3;
}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """inference_pb2 and inference_pb2_grpc, as the compiler writes them."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "inference.proto").write_text(PROTO)
    words = ("-I.", "--python_out=.", "--grpc_python_out=.", "inference.proto")
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], cwd=folder, check=True, timeout=60)
    sys.path.insert(0, str(folder))
    try:
        yield import_module("inference_pb2"), import_module("inference_pb2_grpc")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def address(zoo: Path, tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> str:
    repository = tmp_path_factory.mktemp("grpc")
    write_identity(repository, "m", "FP32")
    write_times(repository, "two", 10, "version_policy { all {} }")
    write_times(repository, "two", 20, version=2)
    for name in ("moody", "echo"):
        shutil.copytree(zoo / name, repository / name)
    flags = ("--version-label", "v1.0.0=1", "--rate-limit-per-minute", "300")
    return address_of(serve_module(repository, "--grpc-port", "0", *flags))


def address_of(server: RunningServer) -> str:
    return f"127.0.0.1:{server.wait_for_event('grpc.listening')['grpc_port']}"


class Client:
    def __init__(self, made: tuple[Any, Any], channel: grpc.Channel) -> None:
        self._messages = made[0]
        self._stub = made[1].InferenceServiceStub(channel)

    def request(self, *inputs: float, version: str = "") -> Any:
        return self._messages.PredictRequest(inputs=inputs, model_version=version)

    def predict(self, model: str, *inputs: float, version: str = "") -> Any:
        return self._stub.Predict(
            self.request(*inputs, version=version), metadata=[("x-model-name", model)], timeout=20
        )

    def stream(self, model: str, *requests: Any) -> Any:
        return self._stub.PredictStream(iter(requests), metadata=[("x-model-name", model)], timeout=20)


@pytest.fixture
def client(made: tuple[Any, Any], address: str) -> Iterator[Client]:
    with channel_to(address) as channel:
        yield Client(made, channel)


def channel_to(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])


def test_a_generated_client_gets_predictions_version_and_latency(client: Client) -> None:
    answer = client.predict("m", 1, 2.5)
    assert (list(answer.predictions), answer.model_version) == ([1, 2.5], "v1.0.0")
    assert answer.latency_ms > 0


def test_a_version_is_asked_for_by_label_or_number(client: Client) -> None:
    assert list(client.predict("two", 1, version="v1.0.0").predictions) == [10]
    assert client.predict("two", 1, version="2").model_version == "2"


@pytest.mark.parametrize(
    ("model", "inputs", "code", "named"),
    [
        ("m", (), "INVALID_ARGUMENT", "inputs cannot be empty"),
        ("m", (1.0, float("nan")), "INVALID_ARGUMENT", "inputs[1] = nan"),
        ("m", (1.0,) * 10_001, "INVALID_ARGUMENT", "inputs has 10001 numbers"),
        ("m", (1.0,) * 600, "INVALID_ARGUMENT", "max_sequence_length"),
        ("m", (1.0,) * 100_000, "INVALID_ARGUMENT", "inputs has more than 10000 numbers"),
        ("", (1.0,), "INVALID_ARGUMENT", "model_name is missing"),
        ("none", (1.0,), "NOT_FOUND", "'none' is not found"),
        ("echo", (1.0,), "INVALID_ARGUMENT", "takes text"),
        ("moody", (-1.0,), "INTERNAL", ""),
    ],
)
def test_what_cannot_be_answered_has_a_status_and_a_sentence(
    client: Client, model: str, inputs: tuple[float, ...], code: str, named: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.predict(model, *inputs)
    assert caught.value.code().name == code
    assert named in caught.value.details()
    assert "secret" not in caught.value.details()


def test_an_inference_has_its_time(
    made: tuple[Any, Any], zoo: Path, tmp_path: Path, serve: Callable[..., RunningServer]
) -> None:
    shutil.copytree(zoo / "moody", tmp_path / "moody")
    server = serve(tmp_path, "--grpc-port", "0", "--inference-timeout-s", "0.5")
    with channel_to(address_of(server)) as channel, pytest.raises(grpc.RpcError) as caught:
        Client(made, channel).predict("moody", 30)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "longer than 0.5 s" in caught.value.details()
    server.process.kill()  # the model sleeps on


def test_a_stream_answers_in_order_and_ends_with_what_it_cannot_answer(client: Client) -> None:
    answers = client.stream("m", *(client.request(number) for number in range(50)))
    assert [answer.predictions[0] for answer in answers] == list(range(50))
    broken = client.stream("m", client.request(1), client.request(2), client.request(), client.request(4))
    assert [next(broken).predictions[0] for _ in range(2)] == [1, 2]
    with pytest.raises(grpc.RpcError) as caught:
        next(broken)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_requests_a_minute_are_counted_as_over_http(client: Client) -> None:
    def until_refused() -> None:
        for _ in range(1000):
            client.predict("m", 1)

    with pytest.raises(grpc.RpcError) as caught:
        until_refused()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "more than 300 requests a minute" in caught.value.details()
    assert "retry-after" in dict(caught.value.trailing_metadata())


def test_the_published_proto_is_the_capabilitys() -> None:
    published = (ROOT / "protos" / "predict.proto").read_text().partition("\n")[2]
    assert "".join(published.split()) == "".join(PROTO.split())


def test_the_dialects_port_is_50051_unless_another_is_given() -> None:
    assert parse(["--model-path", "x", "--dialect", "serving"], {}).server.grpc_port == 50051
    assert parse(["--model-path", "x", "--dialect=serving", "--grpc-port=9"], {}).server.grpc_port == 9
    assert parse(["--model-path", "x"], {}).server.grpc_port == 8081
