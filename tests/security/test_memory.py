"""Clients that send little and make the server hold much: packed bodies, responses that nobody reads."""

import gzip
import json
import socket
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.onnx_models import write_python
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.security.http2_client import Http2Client, header
from tests.serving import RunningServer

pytestmark = pytest.mark.security
MIB = 1 << 20
BUDGET = 128 * MIB  # 200 connections and the allocator hold up to 30 MiB besides
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
    return serve_module(folder, "--grpc-port", "0", "--max-bytes-in-flight", str(BUDGET))


def packed_request() -> bytes:
    """16 KB that unpack to 4 MB, and an answer as large."""
    tensor = {"name": "x", "shape": [1, MIB], "datatype": "FP32", "parameters": {"binary_data_size": 4 * MIB}}
    output = {"name": "y", "parameters": {"binary_data": True}}
    document = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    body = gzip.compress(document + bytes(4 * MIB))
    lines = f"Content-Encoding: gzip\r\nInference-Header-Content-Length: {len(document)}\r\nContent-Length: {len(body)}"
    return f"POST /v2/models/same/infer HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n\r\n".encode() + body


def wide_request() -> bytes:
    tensor = {"name": "megabytes", "shape": [1], "datatype": "INT32", "data": [8]}
    output = {"name": "y", "parameters": {"binary_data": True}}
    body = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    return b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("request_of", [packed_request, wide_request])
def test_clients_that_do_not_read_hold_no_more_than_the_budget(
    server: RunningServer, request_of: Callable[[], bytes]
) -> None:
    with server.connect() as first:
        first.sendall(request_of())
        assert b" 200 " in first.recv(1 << 12)  # libraries and buffers of the first request are no part of the attack
    idle, peak, clients, request = server.rss_bytes(), 0, [], request_of()
    try:
        for _ in range(CLIENTS):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(request)
            clients.append(client)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            peak = max(peak, server.rss_bytes())
            assert server.get("/v2/health/live").status == 200
            time.sleep(0.02)
        # A busy machine executes for longer; clients that do not read are given up after 30 s, which is too late.
        while (left := server.rss_bytes()) - idle >= 1.3 * BUDGET and time.monotonic() < end + 12:
            time.sleep(0.1)
        heads = [client.recv(4096) for client in clients]
    finally:
        for client in clients:
            client.close()
    assert left - idle < 1.3 * BUDGET, f"{(left - idle) >> 20} MiB, {(peak - idle) >> 20} at most"
    refused = [head for head in heads if head.startswith(b"HTTP/1.1 503 ")]
    assert refused
    assert all(b"--max-bytes-in-flight" in head for head in refused)
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    server.wait_until(lambda: server.infer("same", {"inputs": [tensor]}).status == 200, "serving again", 20)


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
