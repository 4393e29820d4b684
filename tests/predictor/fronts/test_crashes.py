"""A front or the model process is killed: who is answered, what is counted, and what is left behind."""

import os
import signal
import threading
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.predictor.workers.several import PID, count_of, pid_of, seconds, wait_for_all, workers, write_pid
from tests.serving import Answer, RunningServer

SLOW_LOAD = "import time\n\ntime.sleep(0.3)\n"


@pytest.fixture
def two(serve: Serve, tmp_path: Path) -> RunningServer:
    return serve(write_pid(tmp_path), "--fronts", "2")


def test_a_front_that_is_killed_takes_its_connections_alone_and_is_replaced(two: RunningServer) -> None:
    first, second, models = wait_for_all(two, 3)
    os.kill(first, signal.SIGKILL)
    two.wait_until(lambda: first not in [row["pid"] for row in workers(two)], "replaced")
    fresh = wait_for_all(two, 3, other_than=first)
    assert fresh[1:] == [second, models]
    counted = count_of(two, "nv_inference_count")
    assert {pid_of(two) for _ in range(20)} == {models}
    assert count_of(two, "nv_inference_count") == counted + 20


def test_requests_of_a_killed_front_leave_the_queue(two: RunningServer, tmp_path: Path) -> None:
    first, second, _ = wait_for_all(two, 3)
    held = tmp_path / "pid" / "held"
    held.touch()
    threads = [threading.Thread(target=attempt, args=(two, [])) for _ in range(8)]
    for thread in threads:
        thread.start()
    two.wait_until(lambda: count_of(two, "pilotlight_queue_depth") == 7, "all wait")
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGKILL)
    for thread in threads:
        thread.join()
    held.unlink()
    wait_for_all(two, 3, other_than=first)
    two.wait_until(lambda: count_of(two, "pilotlight_queue_depth") == 0, "empty")
    assert pid_of(two)


def attempt(server: RunningServer, answers: list[Answer], model: str = "pid") -> None:
    try:
        answers.append(server.infer(model, seconds(0)))
    except (OSError, ValueError, EOFError):
        return


def test_a_killed_model_process_is_replaced_and_no_request_hangs_or_is_refused_meanwhile(
    two: RunningServer, tmp_path: Path
) -> None:
    *fronts, models = wait_for_all(two, 3)
    held = tmp_path / "pid" / "held"
    held.touch()
    running: list[Answer] = []
    threads = [threading.Thread(target=attempt, args=(two, running)) for _ in range(4)]
    for thread in threads:
        thread.start()
    two.wait_until(lambda: count_of(two, "pilotlight_queue_depth") == 3, "all there")
    os.kill(models, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert [answer.status for answer in running] == [503] * 4
    assert "retry" in running[0].error
    held.unlink()
    fresh = pid_of(two)  # waits in a front for the new process
    assert fresh != models
    assert wait_for_all(two, 3, other_than=models) == [*fronts, fresh]
    assert count_of(two, "nv_inference_count") >= 1


def test_a_new_model_process_serves_no_request_before_it_has_repeated_the_calls_of_operators(
    serve: Serve, tmp_path: Path
) -> None:
    for name in ("always", "early", "late"):
        write_pid(tmp_path, name, SLOW_LOAD + PID)
    at_start = ("--load-model=always", "--load-model=early")
    server = serve(tmp_path, "--fronts", "2", "--model-control-mode=explicit", *at_start)
    models = wait_for_all(server, 3)[-1]
    assert server.post("/v2/repository/models/late/load", {}).status == 200
    assert server.post("/v2/repository/models/early/unload", {}).status == 200
    os.kill(models, signal.SIGKILL)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 503, "not ready")
    answers: list[Answer] = []
    threads = [threading.Thread(target=attempt, args=(server, answers, name)) for name in ["early", "late"] * 4]
    for thread in threads:
        thread.start()
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready again")
    states = {row["name"]: row["state"] for row in server.post("/v2/repository/index").json()}
    assert states == {"always": "READY", "early": "UNAVAILABLE", "late": "READY"}
    for thread in threads:
        thread.join()
    assert sorted(answer.status for answer in answers) == [200] * 4 + [404] * 4


def test_the_server_is_not_ready_while_there_is_no_model_process(two: RunningServer) -> None:
    models = wait_for_all(two, 3)[-1]
    os.kill(models, signal.SIGSTOP)
    assert two.get("/v2/health/ready").status == 200
    os.kill(models, signal.SIGKILL)
    two.wait_until(lambda: two.get("/v2/health/ready").status == 503, "not ready")
    two.wait_until(lambda: two.get("/v2/health/ready").status == 200, "ready again")


def test_no_shared_memory_is_left_when_all_are_killed(two: RunningServer) -> None:
    before = set(os.listdir("/dev/shm"))
    pids = wait_for_all(two, 3)
    for pid in (two.process.pid, *pids):
        os.kill(pid, signal.SIGKILL)
    two.process.wait(10)
    assert set(os.listdir("/dev/shm")) <= before


def test_a_stop_answers_what_is_in_flight(two: RunningServer, tmp_path: Path) -> None:
    wait_for_all(two, 3)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(two.infer("pid", seconds(1))))
    thread.start()
    two.wait_until(lambda: count_of(two, "pilotlight_requests_in_flight") >= 1, "in flight")
    assert two.stop() == 0
    thread.join()
    assert [answer.status for answer in answers] == [200]
