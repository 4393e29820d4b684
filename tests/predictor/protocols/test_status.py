"""`/status` reports which models have answered, and how many first responses failed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.eventually import eventually
from tests.onnx_models import write_add_sub, write_python
from tests.serving import RunningServer, json_tensor

Serve = Callable[..., RunningServer]
# Declares no inputs, so that it cannot be sent zeros.
MOODY = """
from pilotlight_predictor.errors import BadRequest


def predict(x):
    if x[0] == 0:
        raise BadRequest("x must not be zero")
    if x[0] < 0:
        raise ValueError("negative")
    return {"y": x}
"""


def body(value: float) -> dict[str, Any]:
    return {"inputs": [json_tensor("x", "FP32", [1], [value])]}


def verification(server: RunningServer) -> tuple[bool, int, dict[str, tuple[bool, int]]]:
    status = server.get("/status").json()
    models = {row["name"]: (row["verified"], row["unverified_failures"]) for row in status["models"]}
    return status["verified"], status["unverified_failures"], models


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_first_failures_are_counted_until_a_model_has_answered(
    tmp_path: Path, serve: Serve, workers: tuple[str, ...]
) -> None:
    write_python(tmp_path, "moody", MOODY)
    write_add_sub(tmp_path, "declared")
    server = serve(tmp_path, *workers)
    eventually(lambda: all(worker["ready"] for worker in server.get("/status").json().get("workers", ())), "all ready")
    assert verification(server) == (False, 0, {"declared": (True, 0), "moody": (False, 0)})
    assert server.get("/v2/health/ready").json() == {"ready": True}
    assert server.get("/status").json()["warmup_failure"] == ""
    assert [server.infer("moody", body(value)).status for value in (-1, 0, -1, -1)] == [500, 400, 500, 500]
    assert verification(server) == (False, 3, {"declared": (True, 0), "moody": (False, 3)})
    assert server.infer("moody", body(1)).status == 200
    assert server.infer("moody", body(-1)).status == 500
    if workers:  # the failure may have come to the worker that had not answered yet
        assert verification(server)[0]
    else:
        assert verification(server) == (True, 3, {"declared": (True, 0), "moody": (True, 3)})


def test_failures_over_grpc_count_too(tmp_path: Path, serve: Serve) -> None:
    write_python(tmp_path, "moody", MOODY)
    server = serve(tmp_path, "--grpc-port", "0")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.wait_for_event('grpc.listening')['grpc_port']}")
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([-1], dtype=np.float32))
    with pytest.raises(triton.InferenceServerException):
        client.infer("moody", [tensor])
    eventually(lambda: verification(server) == (False, 1, {"moody": (False, 1)}), "one failure")


def test_the_repository_index_of_v2_stays_as_it_is(tmp_path: Path, serve: Serve) -> None:
    write_add_sub(tmp_path, "m")
    server = serve(tmp_path)
    assert server.post("/v2/repository/index").json() == [{"name": "m", "version": "1", "state": "READY", "reason": ""}]


def test_a_model_that_failed_to_load_is_neither_verified_nor_not(tmp_path: Path, serve: Serve) -> None:
    write_python(tmp_path, "m", 'INPUTS = {"x": ("FP32", [1])}\n\n\ndef predict(x):\n    return {"y": missing}\n')
    server = serve(tmp_path, ready=False)
    server.wait_for_event("failed")
    status = server.get("/status").json()
    assert (status["ready"], status["verified"]) == (False, False)
    assert "verified" not in status["models"][0]
    assert "NameError: name 'missing' is not defined (1/model.py:5)" in status["reason"]
    assert "NameError: name 'missing' is not defined (1/model.py:5)" in server.get("/v2/health/ready").json()["reason"]
