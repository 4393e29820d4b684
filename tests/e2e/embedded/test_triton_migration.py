"""`platformctl migrate triton`, then a deploy: clients of the old server get the same responses from the service."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as triton
from tests.embedded import Platform
from tests.onnx_models import write_add_sub
from tests.ports import free_range
from tests.serving import RunningServer

FLAGS = ["--model-config-name=custom", "--model-control-mode=explicit", "--load-model=*", "--strict-readiness=true"]
CONFIG = 'name: "{name}" backend: "onnxruntime" max_batch_size: {size}'
TENSOR = '{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ 4 ] }}'
STEPS = """
name: "twice" platform: "ensemble" max_batch_size: 8
ensemble_scheduling { step [
  { model_name: "add" model_version: -1 input_map { key: "a" value: "a" } input_map { key: "b" value: "b" }
    output_map { key: "sum" value: "once" } },
  { model_name: "negate" model_version: -1 input_map { key: "x" value: "once" } output_map { key: "y" value: "c" } }
] }
"""
NEGATE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", -x)]) for x in inputs]
"""


def tensors(kind: str, names: str) -> str:
    return "\n".join(TENSOR.format(kind=kind, name=name) for name in names.split())


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """A platform whose services have ports of their own."""
    with Platform(tmp_path / "home", flags=("--service-ports", str(free_range(20)))) as running:
        yield running


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An ONNX model with a custom configuration, a Python model, and an ensemble of both."""
    folder = tmp_path / "models"
    write_add_sub(folder, "add", config=CONFIG.format(name="add", size=8))
    (folder / "add/configs").mkdir()
    (folder / "add/configs/custom.pbtxt").write_text(CONFIG.format(name="add", size=2))
    (folder / "negate/1").mkdir(parents=True)
    (folder / "negate/1/model.py").write_text(NEGATE)
    negate = f'name: "negate" backend: "python" max_batch_size: 8\n{tensors("input", "x")}\n{tensors("output", "y")}'
    (folder / "negate/config.pbtxt").write_text(negate)
    (folder / "twice/1").mkdir(parents=True)
    (folder / "twice/config.pbtxt").write_text(f"{STEPS}\n{tensors('input', 'a b')}\n{tensors('output', 'c')}")
    return folder


def outcomes(url: str) -> list[Any]:
    """Return what a client of Triton gets from each model: outputs, sentences of errors, and configurations."""
    with triton.InferenceServerClient(url, network_timeout=60) as client:
        return [
            *(infer(client, *call) for call in (("add", "a b", 2), ("add", "a b", 3), ("negate", "x", 1))),
            *(infer(client, *call) for call in (("twice", "a b", 2), ("twice", "a", 1), ("nix", "x", 1))),
            client.get_model_config("add")["max_batch_size"],
            [client.get_model_metadata(name) for name in ("add", "negate", "twice")],
            client.get_inference_statistics("add")["model_stats"][0]["version"],
        ]


def infer(client: triton.InferenceServerClient, model: str, inputs: str, rows: int) -> Any:
    values = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) + 1
    sent = [triton.InferInput(name, [rows, 4], "FP32").set_data_from_numpy(values) for name in inputs.split()]
    try:
        result = client.infer(model, sent, request_id="r")
    except triton.InferenceServerException as error:
        return error.status(), error.message()
    return {output["name"]: result.as_numpy(output["name"]).tolist() for output in result.get_response()["outputs"]}


def test_a_migrated_repository_serves_the_same_as_the_server_did(
    platform: Platform, repository: Path, tmp_path: Path, serve: Callable[..., RunningServer]
) -> None:
    file = tmp_path / "service.yaml"
    command = [sys.executable, "-m", "platformctl", "migrate", "triton", str(repository), *FLAGS, "--http-port=8000"]
    done = subprocess.run([*command, "--name", "flowers", "--to", str(file)], env=platform.env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    before = outcomes(f"127.0.0.1:{serve(repository, '--compat=triton', *FLAGS).port}")
    platform.deploy(file.read_text())
    platform.wait_phase("Ready", name="flowers")
    assert outcomes(f"127.0.0.1:{platform.gateway_port}/flowers") == before
    platform.wait(lambda: "grpc" in platform.status("flowers").urls, "a port for gRPC")
    with rpc.InferenceServerClient(platform.status("flowers").urls["grpc"]) as client:
        assert client.get_model_config("add", as_json=True)["config"]["max_batch_size"] == 2
    refused = pytest.raises(triton.InferenceServerException, match="requires the admin token")
    with triton.InferenceServerClient(f"127.0.0.1:{platform.gateway_port}/flowers") as client, refused:
        client.get_model_repository_index()
    assert b"need the token of --admin-token-file" in done.stderr
    row = [1.0, 2.0, 3.0, 4.0]
    assert before[0]["sum"][0] == [2 * value for value in row]
    assert before[1][0] == "400"  # the custom configuration takes two rows
    assert before[2] == {"y": [[-value for value in row]]}
    assert before[3]["c"][0] == [-2 * value for value in row]
    assert [before[4][0], before[5][0], before[6]] == ["400", "404", 2]


def test_a_service_whose_model_to_load_is_not_there_fails_with_the_reason(
    platform: Platform, repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "service.yaml"
    command = [sys.executable, "-m", "platformctl", "migrate", "triton", str(repository), "--name", "flowers"]
    command += ["--to", str(file), "--model-control-mode=explicit", "--load-model=add", "--load-model=ghost"]
    subprocess.run(command, env=platform.env, check=True, capture_output=True)
    platform.deploy(file.read_text())
    assert "'ghost' is not in the repository" in str(platform.wait_phase("Failed", name="flowers"))
