"""Clients that send little and make the server hold much: packed bodies, responses that nobody reads."""

import gzip
import json
import socket
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from select import select
from threading import Thread

import pytest
from tests.onnx_models import write_python
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.security.http2_client import HEAD, Http2Client, header
from tests.serving import RunningServer, binary_body

from pilotlight.wire.http2 import frames
from pilotlight.wire.protobuf import delimited, varint

pytestmark = pytest.mark.security
MIB = 1 << 20
BUDGET = 256 * MIB  # 200 connections and the allocator hold up to 45 MiB besides
CLIENTS = 200
SAME = """
INPUTS = {"x": ("FP32", [-1, -1])}
OUTPUTS = {"y": ("FP32", [-1, -1])}


def predict(x):
    return {"y": x + 1}
"""
WIDE = """
import numpy as np

INPUTS = {"megabytes": ("INT32", [1])}
OUTPUTS = {"y": ("UINT8", [-1])}


def predict(megabytes):
    return {"y": np.ones(int(megabytes[0]) << 20, np.uint8)}
"""


@pytest.fixture(scope="module")
def server(serve_module: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder: Path = tmp_path_factory.mktemp("models")
    write_python(folder, "same", SAME)
    write_python(folder, "wide", WIDE)
    server = serve_module(folder, "--grpc-port", "0", "--max-bytes-in-flight", str(BUDGET))
    grpc_address(server)  # modules that are imported later are no part of the attack, nor is aiohttp
    server.request("GET", "/v2", full=True)
    return server


def infer_request(body: bytes, *lines: str) -> bytes:
    head = "\r\n".join(("POST /v2/models/same/infer HTTP/1.1", "Host: localhost", *lines))
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def plain_request(pack: Callable[[bytes], bytes] = bytes, *lines: str) -> bytes:
    """4 MB, and an answer as large: more than the buffers of the kernel take."""
    tensor = {"name": "x", "shape": [1, MIB], "datatype": "FP32", "parameters": {"binary_data_size": 4 * MIB}}
    output = {"name": "y", "parameters": {"binary_data": True}}
    body, headers = binary_body({"inputs": [tensor], "outputs": [output]}, bytes(4 * MIB))
    return infer_request(pack(body), *(f"{name}: {value}" for name, value in headers.items()), *lines)


def packed_request() -> bytes:
    """The same in 16 KB."""
    return plain_request(gzip.compress, "Content-Encoding: gzip")


def json_request() -> bytes:
    """2 KB that unpack to 1.6 MB of JSON, and an answer as large."""
    document = b'{"inputs":[{"name":"x","shape":[1,%d],"datatype":"FP32","data":[%b]}]}'
    body = document % (400_000, b",".join([b"1.5"] * 400_000))
    return infer_request(gzip.compress(body), "Content-Encoding: gzip")


def wide_request() -> bytes:
    tensor = {"name": "megabytes", "shape": [1], "datatype": "INT32", "data": [8]}
    output = {"name": "y", "parameters": {"binary_data": True}}
    body = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    return b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def grpc_request() -> bytes:
    """A ModelInfer of 4 KB that unpacks to 4 MB, and an answer as large."""
    tensor = delimited(1, b"x") + delimited(2, b"FP32") + delimited(3, varint(1) + varint(MIB))
    message = gzip.compress(delimited(1, b"same") + delimited(5, tensor) + delimited(7, bytes(4 * MIB)))
    call = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, HEAD + header("grpc-encoding", "gzip"))
    body = frames.frame(frames.DATA, frames.END_STREAM, 1, b"\1" + struct.pack(">I", len(message)) + message)
    return frames.PREFACE + frames.settings({}) + call + body


def peak_rss(server: RunningServer, *, reset: bool = False) -> int:
    """Return the most memory that the server had since the last reset."""
    folder = Path(f"/proc/{server.process.pid}")
    if reset:
        (folder / "clear_refs").write_text("5")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def send(client: socket.socket, request: bytes) -> None:
    with suppress(OSError):  # the end of the test
        client.sendall(request)


def received(client: socket.socket) -> bytes:
    """Return the beginning of what has come by now."""
    with suppress(BlockingIOError):
        return client.recv(4096, socket.MSG_DONTWAIT)
    return b""


def answers_at_length(host: str, port: int, request: bytes) -> bool:
    """Return whether the beginning of the response is longer than a refusal."""
    with socket.create_connection((host, port), timeout=60) as client:
        client.sendall(request)
        length = 0
        while length < 1 << 13 and (part := client.recv(1 << 16)):
            length += len(part)
            if b"--max-bytes-in-flight" in part:
                return False
        return length >= 1 << 13


@pytest.mark.parametrize("request_of", [packed_request, plain_request, json_request, wide_request, grpc_request])
def test_clients_that_do_not_read_hold_no_more_than_the_budget(
    server: RunningServer, request_of: Callable[[], bytes]
) -> None:
    request = request_of()
    host, _, port = (grpc_address(server) if request_of is grpc_request else server.address).rpartition(":")
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    # Libraries and buffers of the first request are no part of the attack; the budget may be held by the last clients.
    server.wait_until(lambda: answers_at_length(host, int(port), request), "a first response", 60)
    server.wait_until(lambda: server.infer("same", {"inputs": [tensor]}).status == 200, "serving", 20)
    idle, clients = server.rss_bytes(), []
    peak_rss(server, reset=True)
    try:
        for _ in range(CLIENTS):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            Thread(target=send, args=(client, request), daemon=True).start()
            clients.append(client)
        least, most = time.monotonic() + 2, time.monotonic() + 15  # a busy machine executes for longer
        while time.monotonic() < (most if len(select(clients, (), (), 0)[0]) < CLIENTS else least):
            assert server.get("/v2/health/live").status == 200
            time.sleep(0.02)
        heads = [received(client) for client in clients]
        peak = peak_rss(server)
    finally:
        for client in clients:
            client.close()
    assert peak - idle < 1.3 * BUDGET, f"{(peak - idle) >> 20} MiB"
    refused = [head for head in heads if b"--max-bytes-in-flight" in head]
    assert refused
    assert all(b"HTTP/1.1 503 " in head or b"grpc-status\x0214" in head for head in refused)
    server.wait_until(lambda: server.infer("same", {"inputs": [tensor]}).status == 200, "serving again", 20)


def test_announced_bodies_keep_nobody_out(server: RunningServer) -> None:
    """A few clients announce more than the budget together and send next to nothing."""
    head = b"POST /v2/models/same/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n{"
    clients = [server.connect() for _ in range(20)]
    try:
        for client in clients:
            client.sendall(head % (60 * MIB))
        for _ in range(5):
            (answer,) = server.exchange(plain_request())
            assert answer.status == 200, answer.body
    finally:
        for client in clients:
            client.close()


def test_a_packed_message_is_unpacked_to_the_bound_and_no_further(server: RunningServer) -> None:
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    bomb = b"".join(compressor.compress(bytes(MIB)) for _ in range(200)) + compressor.flush()
    idle = server.rss_bytes()
    with Http2Client(grpc_address(server)) as client:
        client.open(1, header("grpc-encoding", "gzip"))
        client.data(1, b"\1" + struct.pack(">I", len(bomb)) + bomb, ends=True)
        answer = client.read_until(b"grpc-status")
        peak = server.rss_bytes()
    assert b"grpc-status\x018" in answer or b"grpc-status\x0214" in answer, answer[-300:]
    assert peak - idle < 1.3 * BUDGET


def test_a_length_that_lies_reserves_nothing(server: RunningServer) -> None:
    idle = server.rss_bytes()
    with Http2Client(grpc_address(server)) as client:
        client.open(1)
        client.data(1, b"\0\xff\xff\xff\xffabc")
        assert b"grpc-status\x018" in client.read_until(b"grpc-status")
    assert server.rss_bytes() - idle < 8 * MIB
