"""Two workers on the unix sockets of one folder: they share each socket's backlog."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.conftest import Serve
from tests.predictor.workers.several import count_of, pids_of, wait_for_all, write_pid
from tests.serving import ROOT, RunningServer

PORTS = ("--http-port", "8080", "--grpc-port", "8081", "--metrics-port", "8082")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pid(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def two(repository: Path, sockets: Path, serve_module: Serve) -> RunningServer:
    server = serve_module(repository, "--workers", "2", "--host", f"unix:{sockets}", *PORTS)
    wait_for_all(server)
    return server


def grpc_pid(sockets: Path) -> int:
    tensor = triton.InferInput("seconds", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, "f4"))
    alone = [("grpc.use_local_subchannel_pool", 1)]
    with triton.InferenceServerClient(f"unix:{sockets}/8081", channel_args=alone) as client:
        return int(client.infer("pid", [tensor]).as_numpy("pid")[0])


def test_all_workers_answer_http_and_grpc_on_the_same_sockets(two: RunningServer, sockets: Path) -> None:
    pids = set(wait_for_all(two))
    assert sorted(path.name for path in sockets.iterdir()) == ["8080", "8081", "8082"]
    assert {path.stat().st_mode & 0o777 for path in sockets.iterdir()} == {0o600}
    two.wait_until(lambda: pids_of(two, 10) == pids, "spread over both")
    two.wait_until(lambda: {grpc_pid(sockets) for _ in range(10)} == pids, "spread over both by gRPC")


def test_the_metrics_socket_counts_what_all_workers_did(two: RunningServer) -> None:
    before = count_of(two, "nv_inference_count")
    pids_of(two, 20)
    two.port, http_port = two.metrics_port, two.port
    try:
        assert count_of(two, "nv_inference_count") == before + 20
    finally:
        two.port = http_port


def test_the_sockets_outlive_a_worker_that_is_killed(two: RunningServer) -> None:
    first, _ = wait_for_all(two)
    os.kill(first, signal.SIGKILL)
    assert all(pids_of(two, 20))
    assert first not in wait_for_all(two, other_than=first)
    assert first not in pids_of(two, 20)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_socket_that_another_server_has_is_refused(
    two: RunningServer, sockets: Path, repository: Path, workers: str
) -> None:
    flags = ["--model-repository", str(repository), "--workers", workers, "--host", f"unix:{sockets}", *PORTS]
    command = [sys.executable, "-m", "pilotlight_predictor", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, f"{sockets}/8080: another server listens there" in done.stderr) == (1, True), done.stderr
    assert pids_of(two, 1)
