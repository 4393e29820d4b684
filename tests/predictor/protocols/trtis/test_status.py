"""Health, status and profile as the guide of the TensorRT Inference Server describes them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.onnx_models import write_add_sub, write_identity, write_python
from tests.predictor.protocols.trtis.judge import Judge
from tests.serving import Answer, RunningServer

CONFIG = """
max_batch_size: 8
version_policy { specific { versions: [ 1 ] } }
output [ { name: "sum" label_filename: "labels.txt" } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
tags { key: "team" value: "grün" }
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    repository = tmp_path_factory.mktemp("house")
    folder = write_add_sub(repository, "add_sub", config=CONFIG)
    (folder / "labels.txt").write_text("zero\n")
    write_identity(repository, "same", "INT32")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_text("no model")
    server = serve_module(repository, "--id", "inference:0", ready=False)
    server.wait_until(lambda: server.get("/v2/models/same/ready").status == 200, "serving")
    server.wait_until(lambda: b"LOADING" not in server.get("/api/status").body, "loaded")
    return server


def code(old: Judge, answer: Answer) -> int:
    return int(old.text("RequestStatus", answer.headers["nv-status"]).code)


def test_a_status_is_the_same_in_text_and_binary(house: RunningServer, old: Judge) -> None:
    answers = {form: house.get(f"/api/status?format={form}") for form in ("text", "binary")}
    text = old.text("ServerStatus", answers["text"].body)
    binary = old.binary("ServerStatus", answers["binary"].body)
    assert {code(old, answer) for answer in answers.values()} == {1}
    assert [answers[form].headers["content-type"] for form in answers] == ["text/plain", "application/octet-stream"]
    assert 0 < text.uptime_ns < binary.uptime_ns < 10**12
    text.uptime_ns = binary.uptime_ns
    assert text == binary
    assert text.id == "inference:0"
    assert set(text.model_status) == {"add_sub", "same", "broken"}


def test_a_status_tells_configuration_and_versions(house: RunningServer, old: Judge) -> None:
    config = old.text("ServerStatus", house.get("/api/status").body).model_status["add_sub"].config
    assert (config.name, config.max_batch_size, config.tags["team"]) == ("add_sub", 8, "grün")
    assert list(config.version_policy.specific.versions) == [1]
    assert [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in config.input] == [
        ("a", 11, [4]),
        ("b", 11, [4]),
    ]
    assert config.output[0].label_filename == "labels.txt"
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (2, 2)
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]


def test_a_model_that_failed_is_unavailable(house: RunningServer, old: Judge) -> None:
    broken = old.text("ServerStatus", house.get("/api/status").body).model_status["broken"]
    assert {version: status.ready_state for version, status in broken.version_status.items()} == {1: 2}


def test_one_model_may_be_asked_for(house: RunningServer, old: Judge) -> None:
    status = old.text("ServerStatus", house.get("/api/status/same").body)
    assert set(status.model_status) == {"same"}
    assert status.model_status["same"].version_status[1].ready_state == 1


def test_an_unknown_model_has_no_status(house: RunningServer, old: Judge) -> None:
    answer = house.get("/api/status/x")
    assert (answer.status, code(old, answer), answer.body) == (404, 4, b"")
    told = old.text("RequestStatus", answer.headers["nv-status"]).msg
    assert told == "no status available for unknown model 'x'"
    assert house.get("/api/status/gr%C3%BCn%0A").headers["nv-status"].isascii()


def test_a_format_that_does_not_exist_is_refused(house: RunningServer, old: Judge) -> None:
    answer = house.get("/api/status?format=json")
    assert (answer.status, code(old, answer)) == (400, 5)


def test_statistics_add_up_over_the_sizes_of_batches(
    tmp_path: Path, serve: Callable[..., RunningServer], old: Judge
) -> None:
    write_add_sub(tmp_path, "add_sub", config="max_batch_size: 8")
    server = serve(tmp_path)
    header = 'input { name: "a" byte_size: 16 } input { name: "b" byte_size: 16 }'
    for rows in (1, 3, 3):
        answer = server.post(
            "/api/infer/add_sub", bytes(32 * rows), {"NV-InferRequest": f"batch_size: {rows} {header}"}
        )
        assert answer.status == 200
    version = old.binary("ServerStatus", server.get("/api/status?format=binary").body).model_status["add_sub"]
    status = version.version_status[1]
    assert (status.model_execution_count, status.model_inference_count) == (3, 7)
    assert {size: stats.compute.count for size, stats in status.infer_stats.items()} == {0: 0, 1: 1, 3: 2}
    assert sum(stats.success.count for stats in status.infer_stats.values()) == 3
    assert status.infer_stats[0].success.total_time_ns > status.infer_stats[3].compute.total_time_ns > 0


def test_a_server_is_live_and_says_whether_it_is_ready(server: RunningServer, old: Judge) -> None:
    for path in ("/api/health/live", "/api/health/ready"):
        answer = server.get(path)
        assert (answer.status, code(old, answer), answer.body) == (200, 1, b"")


COMPAT = ("--compat", "trtis", "--exit-on-error", "false")


@pytest.mark.parametrize(("flags", "status"), [((), 503), (COMPAT, 400)])
def test_readiness_wants_every_model(
    tmp_path: Path, serve: Callable[..., RunningServer], old: Judge, flags: tuple[str, ...], status: int
) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_text("no model")
    server = serve(tmp_path, *flags, ready=False)
    server.wait_until(lambda: server.get("/status").json()["state"] == "failed", "through with loading")
    answer = server.get("/api/health/ready")
    assert (answer.status, code(old, answer)) == (status, 6)
    assert "broken" in old.text("RequestStatus", answer.headers["nv-status"]).msg
    assert server.get("/api/health/live").status == 200


def test_readiness_that_is_not_strict_wants_none(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_text("no model")
    server = serve(tmp_path, *COMPAT, "--strict-readiness", "false", ready=False)
    server.wait_until(lambda: server.get("/api/health/ready").status == 200, "ready")


def test_a_profile_needs_a_model_of_torch(house: RunningServer, old: Judge) -> None:
    answer = house.get("/api/profile?cmd=start")
    assert (answer.status, code(old, answer)) == (501, 7)
    assert "Profile API not enabled" in answer.headers["nv-status"]
    assert code(old, house.get("/api/profile?cmd=stop")) == 5
    assert code(old, house.get("/api/profile?cmd=pause")) == 5
    assert code(old, house.get("/api/profile")) == 5


TORCH = """
import torch

INPUTS = {"x": ("FP32", [-1])}
OUTPUTS = {"y": ("FP32", [-1])}


def predict(x):
    return {"y": torch.matmul(torch.ones(64, 64), torch.ones(64, 64))[0, : len(x)].numpy()}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs torch's profiler")
def test_a_profile_tells_where_the_time_of_a_model_went(
    tmp_path: Path, serve: Callable[..., RunningServer], old: Judge
) -> None:
    pytest.importorskip("torch")
    write_python(tmp_path, "product", TORCH)
    server = serve(tmp_path)
    assert server.get("/api/profile?cmd=start").status == 200
    assert code(old, server.get("/api/profile?cmd=start")) == 5
    header = {"NV-InferRequest": 'batch_size: 2 input { name: "x" } output { name: "y" }'}
    assert server.post("/api/infer/product", bytes(8), header).status == 200
    answer = server.get("/api/profile?cmd=stop")
    assert (answer.status, b"aten::matmul" in answer.body) == (200, True), answer.body
