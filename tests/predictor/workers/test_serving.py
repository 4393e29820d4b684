"""Two workers behind one port, asked as one server."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.predictor.workers.several import count_of, pids_of, seconds, wait_for_all, workers, write_pid
from tests.serving import ROOT, RunningServer


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pid(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def two(repository: Path, serve_module: Serve) -> RunningServer:
    server = serve_module(repository, "--workers", "2")
    wait_for_all(server)
    return server


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_requests_are_answered_by_all_workers_and_by_nobody_else(two: RunningServer) -> None:
    known = {row["pid"] for row in workers(two)}
    assert len(known) == 2
    assert two.process.pid not in known
    two.wait_until(lambda: pids_of(two, 10) == known, "spread over both")


def test_metrics_and_statistics_count_what_all_workers_did(two: RunningServer) -> None:
    before = count_of(two, "nv_inference_count")
    stats = two.get("/v2/models/pid/stats").json()["model_stats"][0]["inference_count"]
    assert len(pids_of(two, 40)) == 2
    assert count_of(two, "nv_inference_count") == before + 40
    assert two.get("/v2/models/pid/stats").json()["model_stats"][0]["inference_count"] == stats + 40
    assert two.get("/v2/models/stats").json()["model_stats"][0]["inference_count"] == stats + 40
    assert count_of(two, "pilotlight_request_duration_seconds_count") == count_of(two, "nv_inference_count")


def test_a_rate_limit_holds_over_all_workers(repository: Path, serve: Serve) -> None:
    server = serve(repository, "--workers", "2", "--rate-limit-per-minute", "4")
    wait_for_all(server)
    statuses = [server.infer("pid", seconds(0)).status for _ in range(16)]
    assert statuses == [200] * 4 + [429] * 12


def test_the_metrics_port_tells_the_same(two: RunningServer) -> None:
    http_port, two.port = two.port, two.metrics_port
    try:
        there = count_of(two, "nv_inference_count")
    finally:
        two.port = http_port
    assert there == count_of(two, "nv_inference_count")


def test_the_status_and_the_index_are_of_all(two: RunningServer) -> None:
    assert two.get("/status").json()["ready"] is True
    assert [(row["worker"], row["restarts"], row["state"]) for row in workers(two)] == [
        (0, 0, "ready"),
        (1, 0, "ready"),
    ]
    index = two.post("/v2/repository/index", {"ready": True}).json()
    assert index == [{"name": "pid", "version": "1", "state": "READY", "reason": ""}]


def test_a_refusal_comes_through_as_one_worker_says_it(two: RunningServer) -> None:
    assert two.get("/v2/models/nobody/stats").status == 404
    answer = two.post("/v2/repository/models/pid/load")
    assert (answer.status, "--model-control-mode=explicit" in answer.error) == (400, True)
    assert two.post("/v2/repository/index", b"{").status == 400


def test_only_an_operator_reaches_all(two: RunningServer) -> None:
    assert two.post("/v2/repository/index", headers={"X-Forwarded-For": "10.0.0.1"}).status == 403


def test_log_lines_carry_the_workers_number(two: RunningServer) -> None:
    ready = [line["worker"] for line in two.log() if line["event"] == "ready"]
    assert sorted(ready) == [0, 1]


def test_a_port_that_another_server_has_is_refused(two: RunningServer, repository: Path) -> None:
    flags = ["--model-repository", str(repository), "--workers", "2", "--host", "127.0.0.1"]
    command = [sys.executable, "-m", "pilotlight_predictor", *flags, "--http-port", str(two.port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, f"127.0.0.1:{two.port}" in done.stderr) == (1, True)


def test_one_worker_has_no_parent_and_does_not_import_one(serve: Serve, repository: Path, tmp_path: Path) -> None:
    one = serve(repository, env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = one._log.read_text()
    assert "pilotlight_predictor.bootstrap.application" in imported
    assert "pilotlight_predictor.workers." not in imported
    assert pids_of(one, 3) == {one.process.pid}
    assert children(one.process.pid) == []


def test_the_parent_imports_nothing_that_models_need() -> None:
    code = "import sys, pilotlight_predictor.workers.supervisor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"numpy", "orjson", "aiohttp", "onnxruntime", "uvloop", "yaml"}
    assert not {name.split(".")[0] for name in done.stdout.split()} & heavy


def test_a_start_that_fails_says_why_on_the_port(serve: Serve, tmp_path: Path) -> None:
    broken = serve(write_pid(tmp_path, source="this is no Python\n"), "--workers", "2", ready=False)
    broken.wait_until(lambda: broken.get("/status").json().get("state") == "failed", "failed")
    answer = broken.get("/v2/health/ready")
    assert (answer.status, "model 'pid'" in answer.json()["reason"]) == (503, True)
    assert broken.get("/v2/health/live").status == 200
    assert broken.infer("pid", seconds(0)).status == 404
    assert broken.stop() == 1


def test_a_start_that_shall_end_when_it_fails_ends_with_its_code(serve: Serve, tmp_path: Path) -> None:
    flags = ("--workers", "2", "--exit-on-error")
    broken = serve(write_pid(tmp_path, source="this is no Python\n"), *flags, ready=False)
    assert broken.process.wait(60) == 1
