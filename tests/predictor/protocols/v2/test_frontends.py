"""The same bytes mean the same in the fast lane and in the full HTTP server, however they arrive."""

import json
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serving import Answer, RunningServer, binary_body, json_tensor, read_answer, rendered

GOOD = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
INFER = "/v2/models/identity_fp32/infer"
NOT_HOT = b"GET /v2/logging HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"  # a route that the fast lane leaves to the full server


def cases() -> dict[str, tuple[str, str, Any, dict[str, str]]]:
    """name → method, path, body, headers"""
    raw, raw_headers = binary_body(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]}, b"\0" * 8
    )
    text = json.dumps(GOOD).encode()
    long = {"inputs": [json_tensor("x", "FP32", [30000], [1.5] * 30000)]}
    failing = {"inputs": [json_tensor("seconds", "FP32", [1], [-1])]}
    found: dict[str, tuple[str, str, Any, dict[str, str]]] = {
        "good": ("POST", INFER, GOOD, {}),
        "good-binary": ("POST", INFER, raw, raw_headers),
        "binary-out": ("POST", INFER, {**GOOD, "parameters": {"binary_data_output": True}}, {}),
        "large": ("POST", INFER, long, {}),
        "deflate": ("POST", INFER, zlib.compress(text), {"Content-Encoding": "deflate"}),
        "accept-gzip": ("POST", INFER, long, {"Accept-Encoding": "gzip"}),
        "request-id": ("POST", INFER, GOOD, {"X-Request-Id": "r-1"}),
        "odd-request-id": ("POST", INFER, GOOD, {"X-Request-Id": "r\xff"}),
        "empty": ("POST", INFER, b"", {}),
        "not-json": ("POST", INFER, b"{", {}),
        "not-utf8": ("POST", INFER, b'{"inputs": "\xff"}', {}),
        "short-header": ("POST", INFER, raw, {"Inference-Header-Content-Length": "3"}),
        "long-header": ("POST", INFER, raw, {"Inference-Header-Content-Length": "99999"}),
        "odd-header": ("POST", INFER, raw, {"Inference-Header-Content-Length": "\xff1"}),
        "raw": ("POST", INFER, b"\0" * 8, {"Inference-Header-Content-Length": "0"}),
        "raw-odd": ("POST", INFER, b"\0" * 7, {"Inference-Header-Content-Length": "0"}),
        "bad-gzip": ("POST", INFER, text, {"Content-Encoding": "gzip"}),
        "bad-encoding": ("POST", INFER, text, {"Content-Encoding": "br"}),
        "odd-encoding": ("POST", INFER, text, {"Content-Encoding": "\xe9"}),
        "no-model": ("POST", "/v2/models/nope/infer", GOOD, {}),
        "no-version": ("POST", "/v2/models/identity_fp32/versions/9/infer", GOOD, {}),
        "odd-version": ("POST", "/v2/models/identity_fp32/versions/x/infer", GOOD, {}),
        "encoded": ("POST", "/v2/models/identity%5Ffp32/infer", GOOD, {}),
        "bad-encoded": ("POST", "/v2/models/%ff/infer", GOOD, {}),
        "query": ("POST", INFER + "?a=b", GOOD, {}),
        "live": ("GET", "/v2/health/live", b"", {}),
        "ready": ("GET", "/v2/health/ready", b"", {}),
        "model-ready": ("GET", "/v2/models/scalar/ready", b"", {}),
        "unknown-ready": ("GET", "/v2/models/nope/ready", b"", {}),
        "backend-fails": ("POST", "/v2/models/moody/infer", failing, {"X-Request-Id": "r-2"}),
    }  # fmt: skip
    return found


@pytest.mark.parametrize("name", list(cases()))
def test_both_frontends_answer_alike(server: RunningServer, name: str) -> None:
    method, path, body, headers = cases()[name]
    fast = server.request(method, path, body, headers)
    chunked = server.request(method, path, body, headers, full=True)
    after, again = exchange_after_hand_over(server, rendered(method, path, body, headers, server.address), method)
    assert after.status == 200
    assert comparable(fast) == comparable(chunked) == comparable(again)
    assert ("server" in fast.headers) == (name == "bad-encoded"), "the first was to go through the fast lane"
    assert again.headers["server"] == chunked.headers["server"] == "pilotlight"


def exchange_after_hand_over(server: RunningServer, raw: bytes, method: str) -> tuple[Answer, Answer]:
    """The first request takes the connection to the full server, where the second stays."""
    with server.connect() as connection:
        connection.sendall(NOT_HOT + raw)
        return read_answer(connection, "GET"), read_answer(connection, method)


def comparable(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    headers = {name: value for name, value in answer.headers.items() if name not in {"date", "server", "connection"}}
    return answer.status, headers, answer.body


@pytest.mark.parametrize("name", ["good", "good-binary", "deflate", "not-json", "no-model"])
@pytest.mark.parametrize("first", [b"", NOT_HOT], ids=["lane", "full"])
def test_a_request_may_be_cut_anywhere(server: RunningServer, name: str, first: bytes) -> None:
    """In two pieces at each position, many connections at a time."""
    method, path, body, headers = cases()[name]
    raw = rendered(method, path, body, headers, server.address)
    expected = comparable(server.request(method, path, body, headers))
    positions = list(range(1, len(raw), 1 if not first else 5))
    for start in range(0, len(positions), 64):
        connections = [(position, server.connect()) for position in positions[start : start + 64]]
        for position, connection in connections:
            connection.sendall(first + raw[:position])
        for position, connection in connections:
            connection.sendall(raw[position:])
        for position, connection in connections:
            with connection:
                if first:
                    read_answer(connection, "GET")
                assert comparable(read_answer(connection)) == expected, position


@pytest.mark.parametrize("first", [b"", NOT_HOT], ids=["lane", "full"])
def test_a_request_may_come_byte_by_byte(server: RunningServer, first: bytes) -> None:
    with server.connect() as connection:
        for byte in first + rendered("POST", INFER, GOOD, None, server.address):
            connection.sendall(bytes([byte]))
        if first:
            read_answer(connection, "GET")
        assert read_answer(connection).status == 200


@pytest.mark.parametrize("cut", [1, 9, 60])
def test_the_next_request_may_begin_with_the_last_bytes_of_another(server: RunningServer, cut: int) -> None:
    raw = rendered("POST", INFER, GOOD, None, server.address)
    with server.connect() as connection:
        connection.sendall(NOT_HOT + raw[:cut])
        assert read_answer(connection, "GET").status == 200
        connection.sendall(raw[cut:])
        assert read_answer(connection).status == 200


def test_chunks_of_one_byte_are_put_together(server: RunningServer) -> None:
    body = json.dumps({"inputs": [json_tensor("x", "FP32", [20000], [1] * 20000)]}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = f"POST {INFER} HTTP/1.1\r\nHost: {server.address}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    assert server.exchange(head + chunks)[0].status == 200


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    """Slow and quick ones, good and bad ones, and one in the middle that takes the connection to the full server."""
    slow = rendered(
        "POST", "/v2/models/moody/infer", {"inputs": [json_tensor("seconds", "FP32", [1], [0.05])]}, {}, "localhost"
    )
    sent, expected = b"", []
    for number in range(60):
        headers = {"X-Request-Id": f"n{number}"}
        if number == 30:
            sent += rendered("GET", "/v2/models", b"", headers, "localhost")
        elif number % 7 == 0:
            sent += slow.replace(b"\r\n\r\n", f"\r\nX-Request-Id: n{number}\r\n\r\n".encode(), 1)
        else:
            sent += rendered("POST", INFER, GOOD if number % 5 else b"{", headers, "localhost")
        expected.append(f"n{number}")
    answers = server.exchange(sent, len(expected))
    assert [answer.headers["x-request-id"] for answer in answers] == expected


def test_http_1_0_is_answered_and_closed(server: RunningServer) -> None:
    body = json.dumps(GOOD).encode()
    with server.connect() as connection:
        connection.sendall(f"POST {INFER} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = read_answer(connection)
        assert answer.json()["outputs"][0]["data"] == [1, 2]
        assert connection.recv(1) == b""


@pytest.mark.parametrize("first", [b"", NOT_HOT], ids=["lane", "full"])
def test_connection_close_is_honoured(server: RunningServer, first: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(first + rendered("POST", INFER, GOOD, {"Connection": "close"}, server.address))
        if first:
            read_answer(connection, "GET")
        answer = read_answer(connection)
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert connection.recv(1) == b""


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(server: RunningServer) -> None:
    body = json.dumps(GOOD).encode()
    with server.connect() as connection:
        connection.sendall(
            rendered("POST", INFER, b"", {"Expect": "100-continue", "Content-Length": str(len(body))}, "localhost")
        )
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_answer(connection).status == 200


def test_a_client_that_announces_too_much_is_not_asked_for_it(server: RunningServer) -> None:
    headers = {"Expect": "100-continue", "Content-Length": str(1 << 40)}
    with server.connect() as connection:
        connection.sendall(rendered("POST", INFER, b"", headers, "localhost"))
        assert read_answer(connection).status == 413


def test_a_target_may_be_a_whole_address(server: RunningServer) -> None:
    raw = f"GET http://{server.address}/v2/health/live?x=1 HTTP/1.1\r\nHost: {server.address}\r\n\r\n".encode()
    assert server.exchange(raw, method="GET")[0].json() == {"live": True}


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS handshake
        b"GET /v2 HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost h\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nA b: c\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
        b"POST /v2/models/scalar/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2/models/scalar/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v2/models/scalar/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v2/models/scalar/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v2/models/scalar/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /v2/" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_in_json(server: RunningServer, raw: bytes) -> None:
    answer = server.exchange(raw)[0]
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert "HTTP" in answer.error or "body" in answer.error
    assert len(answer.body) < 400


@pytest.mark.parametrize("blank", [b"\r\n", b"\r\n\r\n", b"\r\n" * 9])
def test_empty_lines_before_a_request_are_no_request(server: RunningServer, blank: bytes) -> None:
    raw = rendered("POST", INFER, GOOD, None, server.address)
    assert [answer.status for answer in server.exchange(blank + raw + raw, 2)] == [200, 200]
    with server.connect() as connection:
        connection.sendall(raw)
        assert read_answer(connection).status == 200
        connection.sendall(blank + raw)
        assert read_answer(connection).status == 200


@pytest.mark.parametrize("length", [5_000, 20_000, 60_000])
def test_a_long_head_is_read(server: RunningServer, length: int) -> None:
    assert server.get("/v2/health/live", {"X-Long": "a" * length}).status == 200


def test_many_headers_are_read_or_refused(server: RunningServer) -> None:
    for count in (50, 5000):
        answer = server.get("/v2/health/live", {f"X-{number}": "a" for number in range(count)})
        assert answer.status in {200, 400}


def test_a_client_that_leaves_in_the_middle_harms_nobody(server: RunningServer) -> None:
    raw = rendered("POST", INFER, GOOD, None, server.address)
    for cut in (10, len(raw) - 5, len(raw)):
        for first in (b"", NOT_HOT):
            connection = server.connect()
            connection.sendall(first + raw[:cut])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # resets instead of closing
            connection.close()
    assert server.infer("identity_fp32", GOOD).status == 200


@pytest.mark.parametrize("full", [False, True], ids=["lane", "full"])
def test_the_size_limit_is_exact_in_both_frontends(limited: RunningServer, full: bool) -> None:
    text = json.dumps(GOOD).encode()
    for length, status in ((LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 413)):
        body = text + b" " * (length - len(text))
        assert limited.infer("identity_fp32", body, full=full).status == status
        assert (
            exchange_after_hand_over(limited, rendered("POST", INFER, body, {}, "localhost"), "POST")[1].status
            == status
        )
        packed = zlib.compress(body)
        assert limited.infer("identity_fp32", packed, {"Content-Encoding": "deflate"}, full=full).status == status


def test_a_body_beyond_the_limit_is_refused_by_its_announcement(limited: RunningServer) -> None:
    with limited.connect() as connection:
        connection.sendall(rendered("POST", INFER, b"", {"Content-Length": str(LIMIT + 1)}, "localhost"))
        answer = read_answer(connection)
    assert (answer.status, "--http-max-input-size" in answer.error) == (413, True)


def test_bytes_in_flight_beyond_the_budget_are_503_at_once_and_come_back(limited: RunningServer) -> None:
    """Two clients hold the budget with bodies that do not end; a third is refused, and served once they left."""
    text = json.dumps(GOOD).encode()
    held = [limited.connect() for _ in range(2)]
    for connection in held:
        connection.sendall(rendered("POST", INFER, b" " * (LIMIT - 1), {"Content-Length": str(LIMIT)}, "localhost"))
    for full in (False, True):
        limited.wait_until(lambda: limited.infer("identity_fp32", text, full=True).status == 503, "full of bytes")
        answer = limited.infer("identity_fp32", text, full=full)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "--max-bytes-in-flight" in answer.error
    for connection in held:
        connection.close()
    limited.wait_until(lambda: limited.infer("identity_fp32", text).status == 200, "free again")


LIMIT = 100_000


@pytest.fixture(scope="module")
def limited(zoo: Path, serve_module: Callable[..., RunningServer]) -> RunningServer:
    sizes = ("--http-max-input-size", str(LIMIT), "--max-bytes-in-flight", str(2 * LIMIT))
    return serve_module(zoo, *sizes)
