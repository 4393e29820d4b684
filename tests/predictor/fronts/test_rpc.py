"""Triton's gRPC client with fronts: inference, streams and control calls as with one process."""

from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.conftest import Serve
from tests.ports import free_port
from tests.predictor.models.bls.triton_models import write_models
from tests.predictor.workers.several import count_of, pid_of, wait_for_all, write_pid
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def two(port: int, tmp_path_factory: pytest.TempPathFactory, serve_module: Serve) -> RunningServer:
    repository = write_pid(write_models(tmp_path_factory.mktemp("models"), "repeat"))
    server = serve_module(repository, "--fronts", "2", "--grpc-port", str(port))
    wait_for_all(server, 3)
    server.wait_until(
        lambda: sum(line["event"] == "grpc.listening" for line in server.log()) == 2, "listening for gRPC in both"
    )
    return server


def tensor(name: str, array: "np.ndarray[Any, Any]", datatype: str) -> triton.InferInput:
    wire = triton.InferInput(name, list(array.shape), datatype)
    wire.set_data_from_numpy(array)
    return wire


def test_calls_and_counts_are_those_of_one_server(two: RunningServer, port: int) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        before = count_of(two, "nv_inference_count")
        pids = {int(client.infer("pid", [tensor("seconds", np.zeros(1, "f4"), "FP32")]).as_numpy("pid")[0])}
        assert pids == {pid_of(two)}
        assert client.get_inference_statistics("pid").model_stats[0].inference_count == before + 2
        with pytest.raises(InferenceServerException, match="shape"):
            client.infer("pid", [tensor("seconds", np.zeros(3, "f4"), "FP32")])
        with pytest.raises(InferenceServerException, match="--fronts"):
            client.get_trace_settings()


def test_a_stream_of_a_decoupled_model_comes_in_order(two: RunningServer, port: int) -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("repeat", [tensor("IN", np.arange(20, dtype="i4"), "INT32")])
        values = []
        for _ in range(20):
            result, error = answers.get(timeout=30)
            assert error is None
            values.append(int(result.as_numpy("OUT").ravel()[0]))
        client.stop_stream()
    assert values == list(range(20))
