"""One worker dies or leaves, all end together, the parent is killed: who is answered, and what is left."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from tests.conftest import Serve
from tests.eventually import eventually
from tests.predictor.workers.several import count_of, pid_of, pids_of, seconds, wait_for_all, workers, write_pid
from tests.serving import RunningServer, read_answer, rendered


@pytest.fixture
def two(serve: Serve, tmp_path: Path) -> RunningServer:
    return serve(write_pid(tmp_path), "--workers", "2")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_worker_that_is_killed_is_replaced_while_the_other_serves(two: RunningServer) -> None:
    first, second = wait_for_all(two)
    assert pids_of(two, 20) == {first, second}
    counted = count_of(two, "nv_inference_count")
    os.kill(first, signal.SIGKILL)
    two.wait_until(lambda: not alive(first), "rid of it")
    assert first not in pids_of(two, 10)
    assert count_of(two, "nv_inference_count") == counted + 10
    fresh = wait_for_all(two, other_than=first)
    two.wait_until(lambda: pids_of(two, 10) == set(fresh), "complete again")
    died = next(line for line in two.log() if line["event"] == "worker.died")
    assert (died["worker"], died["code"]) == (0, -signal.SIGKILL)


def test_a_worker_whose_model_died_takes_no_more_connections(two: RunningServer) -> None:
    pids = set(wait_for_all(two))
    assert two.infer("pid", seconds(-1)).status == 500
    ready: list[int] = []

    def down_to_one() -> bool:
        ready[:] = [row["pid"] for row in workers(two) if row["ready"]]
        return len(ready) == 1

    two.wait_until(down_to_one, "down to one")
    (left,) = ready
    two.wait_until(lambda: answered(two) == {(200, left)}, "served by the other alone")
    assert {two.get("/v2/health/ready").status for _ in range(40)} == {200}
    (row,) = two.post("/v2/repository/index").json()
    sick = next(row["worker"] for row in workers(two) if not row["ready"])
    assert (row["state"], row["reason"].startswith(f"worker {sick}: ")) == ("UNAVAILABLE", True)
    assert {row["pid"] for row in workers(two)} == pids


def answered(server: RunningServer) -> set[tuple[int, int]]:
    """Status and process of answers to so many connections that each socket has some."""
    answers = [server.infer("pid", seconds(0)) for _ in range(40)]
    return {(a.status, a.json()["outputs"][0]["data"][0] if a.status == 200 else 0) for a in answers}


def test_a_worker_that_is_told_to_leave_loses_no_request(two: RunningServer) -> None:
    pids = wait_for_all(two)
    done = threading.Event()
    seen: list[int] = []

    def ask() -> None:
        while not done.is_set():
            seen.append(pid_of(two))

    asking = threading.Thread(target=ask)
    asking.start()
    os.kill(pids[1], signal.SIGTERM)
    try:
        fresh = wait_for_all(two, other_than=pids[1])
        two.wait_until(lambda: fresh[1] in seen, "answering by the new one")
    finally:
        done.set()
        asking.join()
    assert {pids[0], fresh[1]} <= set(seen) <= {*pids, fresh[1]}


def in_flight(server: RunningServer, held: Path, requests: int) -> list[socket.socket]:
    """Connections that each wait for an answer, which does not come before the file is gone."""
    held.touch()
    raw = rendered("POST", "/v2/models/pid/infer", seconds(0), None, server.address)
    connections = [server.connect(60) for _ in range(requests)]
    for connection in connections:
        connection.sendall(raw)
    server.wait_until(lambda: server.get("/status").json()["in_flight"] > 0, "busy")
    return connections


def statuses(connections: list[socket.socket]) -> list[int]:
    found = []
    for connection in connections:
        with connection:
            found.append(read_answer(connection).status)
    return found


def test_all_workers_finish_what_they_have_when_the_parent_is_told_to_stop(two: RunningServer, tmp_path: Path) -> None:
    pids, held = wait_for_all(two), tmp_path / "pid" / "held"
    waiting = in_flight(two, held, 4)
    two.process.send_signal(signal.SIGTERM)
    two.wait_for_event("stopping")
    held.unlink()
    assert statuses(waiting) == [200] * 4
    assert two.process.wait(60) == 0
    assert not [pid for pid in pids if alive(pid)]
    with pytest.raises(ConnectionRefusedError):
        two.connect()


def test_a_second_signal_ends_all_at_once(two: RunningServer) -> None:
    pids = wait_for_all(two)
    connection = two.connect()
    connection.sendall(b"POST /v2/models/pid/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n")
    two.process.send_signal(signal.SIGTERM)
    two.wait_for_event("stopping")
    two.process.send_signal(signal.SIGTERM)
    assert two.process.wait(60) == 1
    connection.close()
    assert not [pid for pid in pids if alive(pid)]


def test_workers_finish_and_end_when_the_parent_is_killed(two: RunningServer, tmp_path: Path) -> None:
    pids, held = wait_for_all(two), tmp_path / "pid" / "held"
    waiting = in_flight(two, held, 2)
    two.process.kill()
    eventually(lambda: sum(line["event"] == "orphaned" for line in two.log()) == 2, "both to notice")
    held.unlink()
    assert statuses(waiting) == [200] * 2
    eventually(lambda: not any(alive(pid) for pid in pids), "both to end")
