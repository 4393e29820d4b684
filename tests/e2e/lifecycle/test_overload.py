"""Clients that leave, queues that fill, models that fail: seen from outside, through both frontends."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.lifecycle.models import HELD, body, write_signed
from tests.eventually import eventually
from tests.serving import RunningServer, read_answer, rendered

Serve = Callable[..., RunningServer]

EXITS = """
import sys

INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


def predict(x):
    if x[0]:
        sys.exit(1)
    return {{"y": x}}
"""


def queued(server: RunningServer) -> int:
    """How many wait for the instance."""
    text = server.get("/metrics").body.decode()
    line = next(line for line in text.splitlines() if line.startswith('pilotlight_queue_depth{model="m"'))
    return int(float(line.rpartition(" ")[2]))


def held(server: RunningServer, signs: Path, value: float = 1) -> socket.socket:
    """A connection whose request holds the one instance."""
    connection = server.connect(60)
    connection.sendall(rendered("POST", "/v2/models/m/infer", body(value), None, server.address))
    eventually((signs / f"began {value:g}").exists, "the instance to be busy")
    return connection


@pytest.mark.parametrize("full", [False, True])
def test_a_client_that_leaves_the_queue_is_never_executed(tmp_path: Path, serve: Serve, full: bool) -> None:
    server = serve(write_signed(tmp_path, HELD))
    busy = held(server, tmp_path)
    leaving = server.connect()
    leaving.sendall(rendered("POST", "/v2/models/m/infer", body(2), None, server.address, chunked=full))
    server.wait_until(lambda: queued(server) == 1, "queueing it")
    leaving.close()
    server.wait_until(lambda: queued(server) == 0, "free of it")
    (tmp_path / "go").touch()
    assert read_answer(busy).status == 200
    busy.close()
    assert server.infer("m", body(3)).status == 200
    assert sorted(path.name for path in tmp_path.glob("began *")) == ["began 1", "began 3"]
    stats = server.get("/v2/models/m/stats").json()["model_stats"][0]
    assert stats["inference_stats"]["success"]["count"] == 2
    assert stats["inference_stats"]["fail"]["count"] == 1
    assert server.get("/status").json()["in_flight"] == 0


def test_a_full_queue_answers_503_at_once_with_when_to_come_again(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), "--max-queue-size", "1")
    connections = [held(server, tmp_path), server.connect(60)]
    connections[1].sendall(rendered("POST", "/v2/models/m/infer", body(2), None, server.address))
    server.wait_until(lambda: queued(server) == 1, "queueing it")
    for full in (False, True):
        answer = server.infer("m", body(3), full=full)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error == "Exceeds maximum queue size: 1 requests wait for model 'm'"
    (tmp_path / "go").touch()
    for connection in connections:
        assert read_answer(connection).status == 200
        connection.close()


def test_a_request_that_waits_longer_than_it_said_is_refused_while_the_model_is_busy(
    tmp_path: Path, serve: Serve
) -> None:
    server = serve(write_signed(tmp_path, HELD))
    busy = held(server, tmp_path)
    answer = server.infer("m", body(2, parameters={"timeout": 50_000}))
    assert (answer.status, answer.error) == (503, "Request timeout expired while it waited in the queue")
    (tmp_path / "go").touch()
    assert read_answer(busy).status == 200
    busy.close()
    assert not (tmp_path / "began 2").exists()


def test_a_request_of_a_higher_priority_overtakes_those_that_wait(tmp_path: Path, serve: Serve) -> None:
    levels = "max_batch_size: 0 dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    server = serve(write_signed(tmp_path, HELD, config=levels))
    connections = [held(server, tmp_path)]
    for value, parameters in ((2, {}), (3, {"priority": 2}), (4, {"priority": 1})):
        connections.append(server.connect(60))
        raw = rendered("POST", "/v2/models/m/infer", body(value, parameters=parameters), None, server.address)
        connections[-1].sendall(raw)
        server.wait_until(lambda: queued(server) == len(connections) - 1, "queueing it")
    (tmp_path / "go").touch()
    assert [read_answer(connection).status for connection in connections] == [200] * 4
    for connection in connections:
        connection.close()
    assert (tmp_path / "order").read_text().split() == ["1", "4", "2", "3"]


def test_an_inference_that_takes_too_long_is_answered_504_waiting_or_running(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), "--inference-timeout-s", "1.5")
    busy = held(server, tmp_path)
    for answer in (server.infer("m", body(2)), read_answer(busy)):
        assert answer.status == 504
        assert answer.error == "inference took longer than 1.5 s (--inference-timeout-s)"
    busy.close()
    (tmp_path / "go").touch()
    server.wait_until(lambda: server.infer("m", body(3)).status == 200, "answering again")
    assert not (tmp_path / "began 2").exists()


def test_a_model_that_raises_is_opaque_to_the_client_and_plain_in_the_log(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD))
    for full in (False, True):
        answer = server.infer("m", body(-1), full=full)
        assert answer.status == 500
        assert answer.error == "model 'm' failed; see the server's log"
    assert any("a secret of the model" in line.get("traceback", "") for line in server.log())


@pytest.mark.parametrize("full", [False, True])
def test_what_failed_is_found_in_the_log_by_the_id_of_the_request_or_by_one_that_is_told(
    tmp_path: Path, serve: Serve, full: bool
) -> None:
    server = serve(write_signed(tmp_path, HELD))
    mine = server.infer("m", body(-1), {"X-Request-Id": "mine"}, full=full)
    named = server.infer("m", body(-1, id="by its document"), full=full)
    unnamed = server.infer("m", body(-1), full=full)
    told = [answer.headers["x-request-id"] for answer in (mine, named, unnamed)]
    assert told[:2] == ["mine", "by its document"]
    assert len(told[2]) == 16
    for request_id in told:
        lines = [line for line in server.log() if line.get("request_id") == request_id]
        assert [line["event"] for line in lines] == ["backend.failed", "request.failed"]
        assert "a secret of the model" in lines[0]["traceback"]
    odd = server.infer("m", body(-1, id="two\r\nlines: \u2028" + "x" * 9999), full=full)
    assert (odd.status, "x-request-id" in odd.headers) == (500, False)


def test_a_model_that_exits_takes_the_servers_readiness_with_it(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, EXITS))
    assert server.infer("m", body(1)).status == 500
    ready = server.get("/v2/health/ready")
    assert (ready.status, ready.json()["state"]) == (503, "failed")
    assert ready.json()["reason"] == "model 'm': the model raised SystemExit"
    assert server.get("/v2/models/m/ready").status == 503
    assert server.infer("m", body(1)).status == 503
    assert server.get("/v2/health/live").status == 200


def test_a_model_that_is_held_up_leaves_another_answering(tmp_path: Path, serve: Serve) -> None:
    repository = write_signed(tmp_path, HELD)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/go").touch()
    write_signed(tmp_path / "other", HELD, "other")
    server = serve(repository, "--model-repository", str(tmp_path / "other/models"))
    flood = [server.connect(60) for _ in range(50)]
    for number, connection in enumerate(flood):
        connection.sendall(rendered("POST", "/v2/models/m/infer", body(number + 1), None, server.address))
    server.wait_until(lambda: queued(server) == 49, "flooded")
    assert [server.infer("other", body(value)).status for value in range(1, 11)] == [200] * 10
    assert queued(server) == 49
    (tmp_path / "go").touch()
    assert [read_answer(connection).status for connection in flood] == [200] * 50
    for connection in flood:
        connection.close()
