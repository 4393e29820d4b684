"""Triton's gRPC client with several workers: connections are spread, and control calls concern all."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.conftest import Serve
from tests.ports import free_port
from tests.predictor.workers.several import count_of, pids_of, wait_for_all, write_pid
from tests.serving import RunningServer
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def two(port: int, tmp_path_factory: pytest.TempPathFactory, serve_module: Serve) -> RunningServer:
    repository = write_pid(tmp_path_factory.mktemp("models"))
    flags = ("--workers", "2", "--model-control-mode", "explicit", "--grpc-port", str(port))
    server = serve_module(repository, *flags)
    wait_for_all(server)
    server.wait_until(
        lambda: sum(line["event"] == "grpc.listening" for line in server.log()) == 2, "listening for gRPC in both"
    )
    return server


@contextmanager
def fresh(port: int) -> Iterator[triton.InferenceServerClient]:
    """A client with a connection of its own."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with triton.InferenceServerClient(f"127.0.0.1:{port}", channel_args=alone) as client:
        yield client


def rpc_pid(port: int) -> int:
    tensor = triton.InferInput("seconds", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, "f4"))
    with fresh(port) as client:
        return int(client.infer("pid", [tensor]).as_numpy("pid")[0])


def test_a_model_loaded_over_grpc_is_loaded_in_all_and_counted_over_all(two: RunningServer, port: int) -> None:
    with fresh(port) as client:
        client.load_model("pid")
        pids = pids_of(two, 30)
        assert len(pids) == 2
        before = client.get_inference_statistics("pid").model_stats[0].inference_count
        assert {rpc_pid(port) for _ in range(30)} == pids
        assert client.get_inference_statistics("pid").model_stats[0].inference_count == before + 30
        assert client.get_inference_statistics().model_stats[0].inference_count == count_of(two, "nv_inference_count")
        assert [row.state for row in client.get_model_repository_index().models] == ["READY"]
        client.unload_model("pid")
    assert {two.get("/v2/models/pid/ready").status for _ in range(20)} == {503}


def test_a_refusal_has_the_code_and_the_words_of_one_server(two: RunningServer, port: int) -> None:
    with fresh(port) as client:
        with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*failed to load 'nobody'"):
            client.load_model("nobody")
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.get_inference_statistics("nobody")
        with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT.*config"):
            client.load_model("pid", config="{")
