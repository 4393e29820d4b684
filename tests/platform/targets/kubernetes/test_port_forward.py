"""A connection through the API server carries what both sides send, and ends when either does."""

import http.client
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.platform.targets.kubernetes.fake_cluster import PaperCluster

from pilotlight.targets.kubernetes.port_forward import PortForward

LARGE = bytes(range(256)) * 8192  # 2 MiB: many messages of a websocket


class Echo(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Without a length: the end of the connection is the end of the answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(LARGE)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def echo() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def forward(echo: int) -> Iterator[PortForward]:
    with PaperCluster() as paper:
        paper.ports = {8080: echo}
        with PortForward(paper.cluster().connection, "default", "iris-0", 8080) as made:
            yield made


def test_a_large_body_comes_back_whole(forward: PortForward) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", forward.port, timeout=60)
    connection.request("POST", "/", LARGE)
    assert connection.getresponse().read() == LARGE
    connection.close()


def test_an_answer_that_ends_with_its_connection_loses_nothing(forward: PortForward) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/", timeout=60) as answer:
        assert answer.read() == LARGE


def test_connections_do_not_wait_for_each_other(forward: PortForward) -> None:
    url = f"http://127.0.0.1:{forward.port}/"
    with socket.create_connection(("127.0.0.1", forward.port)), urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read() == LARGE


def test_a_port_that_nobody_listens_on_ends_the_connection(echo: int) -> None:
    with (
        PaperCluster() as paper,
        PortForward(paper.cluster().connection, "default", "iris-0", 1) as forward,
        socket.create_connection(("127.0.0.1", forward.port), 60) as client,
    ):
        assert client.recv(1) == b""


def test_closing_cuts_what_is_open_and_frees_the_port(forward: PortForward) -> None:
    with socket.create_connection(("127.0.0.1", forward.port), 60) as client:
        client.sendall(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi")
        assert client.recv(100).startswith(b"HTTP/1.")
        forward.close()
        while client.recv(100):
            pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", forward.port), 60)
