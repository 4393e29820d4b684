"""Clients that do not read, do not send, or may not ask: what they cost the others."""

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.onnx_models import write_python
from tests.serving import RunningServer

WIDE = """
import numpy as np

INPUTS = {"megabytes": ("INT32", [1])}
OUTPUTS = {"y": ("UINT8", [-1])}


def predict(megabytes):
    return {"y": np.ones(int(megabytes[0]) << 20, np.uint8)}
"""
Serve = Callable[..., RunningServer]


def ask_for(megabytes: int) -> bytes:
    tensor = {"name": "megabytes", "shape": [1], "datatype": "INT32", "data": [megabytes]}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}).encode()
    return b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    write_python(folder, "wide", WIDE)
    return folder


def connect(server: RunningServer) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    return client


def read_all(client: socket.socket) -> int:
    total = 0
    while chunk := client.recv(1 << 20):
        total += len(chunk)
    return total


def test_an_answer_on_its_way_to_a_slow_reader_is_whole_when_the_server_stops(serve: Serve, repository: Path) -> None:
    server = serve(repository)
    with connect(server) as client:
        client.sendall(ask_for(48))
        head = client.recv(1 << 10)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_event("stopping")
        assert len(head) + read_all(client) > 48 << 20
    assert server.process.wait(20) == 0


def test_a_client_that_does_not_read_its_answers_gets_no_further_ones(serve: Serve, repository: Path) -> None:
    server = serve(repository)
    with connect(server) as client:
        before = server.rss_bytes()
        client.sendall(ask_for(16) * 40)
        server.wait_until(lambda: server.rss_bytes() > before + (8 << 20), "the first answer to be made")
        for _ in range(20):
            assert server.get("/v2/health/live").status == 200
            time.sleep(0.02)
        assert server.rss_bytes() < before + (160 << 20)
        received = 0
        while received < 40 * (16 << 20):
            received += len(client.recv(1 << 20))
    assert server.get("/v2/health/ready").status == 200


def test_whoever_may_not_ask_reserves_no_room_for_a_body(serve: Serve, repository: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("sesame")
    server = serve(repository, "--api-token-file", str(token), "--max-bytes-in-flight", str(2 << 20))
    announced = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{" % (2 << 20)
    with connect(server) as stranger:
        stranger.sendall(announced)
        assert b" 401 " in stranger.recv(1 << 12)
        allowed = ask_for(1).replace(b"Host: localhost", b"Host: localhost\r\nAuthorization: Bearer sesame")
        with connect(server) as friend:
            friend.sendall(allowed)
            assert b" 200 " in friend.recv(1 << 12)
