"""Loads and unloads by call hold in every worker, or in none."""

import os
import signal
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.predictor.workers.several import PID, pids_of, seconds, wait_for_all, write_pid
from tests.serving import RunningServer

EXPLICIT = ("--workers", "2", "--model-control-mode", "explicit")
# Its first load succeeds, in whichever worker, and every later one fails.
ONCE = (
    PID
    + """

os.open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "loaded"), os.O_CREAT | os.O_EXCL)
"""
)


def load(server: RunningServer, model: str, body: object = b"") -> None:
    answer = server.post(f"/v2/repository/models/{model}/load", body)
    assert answer.status == 200, answer.body


def statuses(server: RunningServer, model: str) -> set[int]:
    """Of requests on connections enough to reach both workers."""
    return {server.infer(model, seconds(0)).status for _ in range(30)}


def state_of(server: RunningServer, model: str) -> tuple[str, str]:
    rows = server.post("/v2/repository/index").json()
    return next((row["state"], row["reason"]) for row in rows if row["name"] == model)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository: Path, serve_module: Serve) -> RunningServer:
    server = serve_module(repository, *EXPLICIT)
    wait_for_all(server)
    return server


def test_a_model_is_loaded_and_unloaded_in_all_workers(server: RunningServer, repository: Path) -> None:
    write_pid(repository)
    pids = wait_for_all(server)
    assert statuses(server, "pid") == {404}
    load(server, "pid")
    assert pids_of(server, 40) == set(pids)
    assert state_of(server, "pid") == ("READY", "")
    assert server.post("/v2/repository/models/pid/unload").status == 200
    assert statuses(server, "pid") == {404}


def test_a_load_that_fails_in_one_worker_is_taken_back_in_the_others(server: RunningServer, repository: Path) -> None:
    write_pid(repository, "once", ONCE)
    answer = server.post("/v2/repository/models/once/load")
    assert answer.status == 400
    assert "failed to load 'once'" in answer.error
    assert "in worker 1; the other workers were rolled back" in answer.error
    assert statuses(server, "once") == {404}


def test_a_reload_that_fails_in_one_worker_takes_nothing_away(server: RunningServer, repository: Path) -> None:
    write_pid(repository, "again")
    load(server, "again")
    (repository / "again" / "1" / "model.py").write_text(ONCE)
    answer = server.post("/v2/repository/models/again/load")
    assert answer.status == 400, answer.body
    assert statuses(server, "again") == {200}


def test_a_model_that_needs_one_memory_for_its_sequences_is_refused(server: RunningServer, repository: Path) -> None:
    config = """
        max_batch_size: 1
        input [ { name: "seconds" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "pid" data_type: TYPE_INT64 dims: [ 1 ] } ]
        sequence_batching { }
    """
    write_pid(repository, "sequence", config=config)
    answer = server.post("/v2/repository/models/sequence/load")
    assert (answer.status, "sequence_batching" in answer.error) == (400, True)


def test_a_worker_that_comes_late_serves_what_was_loaded_before_it_came(serve: Serve, tmp_path: Path) -> None:
    write_pid(tmp_path, "started")
    server = serve(write_pid(tmp_path), *EXPLICIT, "--load-model", "started")
    pids = wait_for_all(server)
    load(server, "pid", {"parameters": {"config": '{"max_batch_size": 0, "parameters": {"a": {"string_value": "b"}}}'}})
    assert server.post("/v2/repository/models/started/unload").status == 200
    os.kill(pids[0], signal.SIGKILL)
    fresh = wait_for_all(server, other_than=pids[0])
    assert pids_of(server, 40) == set(fresh)
    assert statuses(server, "started") == {404}
    configs = {server.get("/v2/models/pid/config").json()["parameters"]["a"]["string_value"] for _ in range(20)}
    assert configs == {"b"}
