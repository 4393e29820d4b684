"""Requests one after the other, to a server that keeps connections and to one that does not."""

import threading
from collections.abc import Iterator
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pilotlight.wire.http_client import FAILURES, MAX_CONTAINERS, MAX_KEYS, HttpClient, ResponseTooLong, decode_json


class Server(BaseHTTPRequestHandler):
    """Tells what was asked, and over which connection; breaks off where it is told to."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.endswith("/breaks"):
            self.connection.close()
            self.close_connection = True
            return
        self.send_response(418, "A Teapot")
        self.send_header("X-From", str(self.client_address[1]))
        self.send_header("X-Path", self.path)
        self.send_header("X-Told", self.headers.get("told", ""))
        self.send_header("Content-Length", str(len(asked)))
        self.end_headers()
        self.wfile.write(asked)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nobody reads it."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/below/"
        server.shutdown()
        thread.join()


def test_an_answer_is_told_whole(url: str) -> None:
    with HttpClient(url, 10.0, {"told": "always"}) as conversation:
        reply = conversation.request("POST", "/here", b"body")
    assert (reply.status, reply.reason, reply.body) == (418, "A Teapot", b"body")
    assert (reply.headers["x-path"], reply.headers["x-told"]) == ("/below/here", "always")


def test_requests_share_a_connection(url: str) -> None:
    with HttpClient(url, 10.0) as conversation:
        ports = {conversation.request("POST", "/here").headers["x-from"] for _ in range(3)}
    assert len(ports) == 1


def test_after_one_that_was_broken_off_the_next_is_answered(url: str) -> None:
    with HttpClient(url, 10.0) as conversation:
        with pytest.raises((OSError, HTTPException)):
            conversation.request("POST", "/breaks")
        assert conversation.request("POST", "/here", headers={"told": "once"}).headers["x-told"] == "once"


def test_that_nobody_listens_is_told_before_anything_is_sent(url: str) -> None:
    with HttpClient("http://127.0.0.1:1", 10.0) as conversation, pytest.raises(ConnectionError):
        conversation.connect()


def test_a_user_in_the_address_is_no_part_of_the_host(url: str) -> None:
    with HttpClient(url.replace("//", "//somebody:secret@", 1), 10.0) as conversation:
        assert "secret" not in conversation.address
        assert conversation.request("POST", "/here").status == 418


def test_silence_is_one_of_the_failures() -> None:
    assert issubclass(TimeoutError, FAILURES)


def test_a_response_above_the_limit_is_not_read_on(url: str) -> None:
    with HttpClient(url, 10.0, max_bytes=4) as conversation:
        assert conversation.request("POST", "/here", b"four").body == b"four"
        with pytest.raises(ResponseTooLong, match="more than 4 bytes"):
            conversation.request("POST", "/here", b"fives")
        assert conversation.request("POST", "/here", b"four").body == b"four"


def test_json_that_takes_long_to_decode_is_refused() -> None:
    assert decode_json(b"[[], {}]") == [[], {}]
    keys = b"{%s}" % b",".join(b'"%d":0' % number for number in range(MAX_KEYS + 1))  # 4,000,000 decode in 2.8 s
    for text in (b"[" * 10**5, b"[" + b"[]," * MAX_CONTAINERS + b"1]", b"[" + b"0," * 4_000_001 + b"0]", keys):
        with pytest.raises(ValueError, match="JSON"):
            decode_json(text)
