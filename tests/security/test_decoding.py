"""Requests that are cheap to send and costly to decode: health checks are answered meanwhile, whatever the protocol.

Each attack is sent to a running predictor while another client asks health/live over and over. On a quiet machine it
waits for less than 100 ms (the long test, with 64 MiB); the short one leaves room for a busy machine.
"""

import gzip
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import grpc
import pytest
from tests.conftest import Serve
from tests.onnx_models import write_python
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.security.models import CHAT, CHAT_CONFIG
from tests.serving import RunningServer, binary_body, read_answer, rendered

from pilotlight.wire.protobuf import delimited, tag, varint

pytestmark = pytest.mark.security

MIB = 1 << 20
BUSY_S, SIZE = 0.4, 4 * MIB  # without the bounds, such requests hold the event loop for 1 to 3 s
QUIET_S, LARGEST = 0.1, 64 * MIB - 4096
ATTEMPTS = 5  # of which one must keep the bound: other processes delay health checks too
TRTIS = "/api/infer/strings"
GRPC = "/inference.GRPCInferenceService/ModelInfer"
ECHO = "def predict(x):\n    return {'y': x}\n"
ECHO_CONFIG = """
backend: "python"
input [ { name: "x" data_type: TYPE_%s dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_%s dims: [ -1 ] } ]
"""
EMBED = """
import numpy as np


def predict(text):
    return {"embedding": np.ones((len(text), 1000), np.float32)}
"""
EMBED_CONFIG = """
backend: "python"
max_batch_size: 64
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 1000 ] } ]
"""


class Attack(NamedTuple):
    path: str
    body: Callable[[int], bytes]  # of about as many bytes
    statuses: tuple[int, ...] = (200, 400, 413, 422)
    headers: Callable[[bytes], dict[str, str]] = lambda body: {}


def repeated(before: bytes, item: bytes, after: bytes) -> Callable[[int], bytes]:
    return lambda size: before + b",".join([item] * (size // (len(item) + 1))) + after


def keys(before: bytes, after: bytes) -> Callable[[int], bytes]:
    return lambda size: before + b",".join(b'"%08d":1' % number for number in range(size // 13)) + after


def tensor(datatype: bytes, item: bytes, more: bytes = b"") -> Callable[[int], bytes]:
    def body(size: int) -> bytes:
        count = size // (len(item) + 1)
        start = b'{"inputs":[{"name":"x","datatype":"%b","shape":[%d],"data":[' % (datatype, count)
        return start + b",".join([item] * count) + b"]}]%b}" % more

    return body


def empty_strings(size: int) -> bytes:
    count = size // 4
    wire = {"name": "x", "shape": [count], "datatype": "BYTES", "parameters": {"binary_data_size": 4 * count}}
    return binary_body({"inputs": [wire]}, bytes(4 * count))[0]


def classified(size: int) -> bytes:
    count = size // 4
    wire = {"name": "x", "shape": [count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
    output = {"name": "y", "parameters": {"classification": count}}
    return binary_body({"inputs": [wire], "outputs": [output]}, bytes(4 * count))[0]


def control(size: int) -> bytes:
    return b"\\u0001" * (size // 6)


def json_length(body: bytes) -> dict[str, str]:
    return {"Inference-Header-Content-Length": str(body.index(b"\0"))}


def message(model: bytes, datatype: bytes, count: int, contents: bytes = b"", raw: bytes | None = None) -> bytes:
    """Return a ModelInferRequest with one input."""
    dims = delimited(3, varint(count))
    head = delimited(1, b"x") + delimited(2, datatype) + dims + (delimited(5, contents) if contents else b"")
    return delimited(1, model) + delimited(5, head) + (delimited(7, raw) if raw is not None else b"")


ATTACKS = {
    "V2 empty strings": Attack("/v2/models/strings/infer", empty_strings, headers=json_length),
    "V2 empty strings for numbers": Attack("/v2/models/numbers/infer", empty_strings, (400,), json_length),
    "V2 classification": Attack("/v2/models/numbers/infer", classified, (200, 400), json_length),
    "V2 JSON numbers": Attack("/v2/models/numbers/infer", tensor(b"FP32", b"1"), (200,)),
    "V2 JSON nulls": Attack("/v2/models/numbers/infer", tensor(b"FP32", b"null"), (200,)),
    "V2 JSON lists": Attack("/v2/models/numbers/infer", tensor(b"FP32", b"[]")),
    "V2 JSON strings": Attack("/v2/models/strings/infer", tensor(b"BYTES", b'""')),
    "V2 JSON control characters": Attack(
        "/v2/models/strings/infer",
        lambda size: b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["%b"]}]}' % control(size)),
    "V2 parameters": Attack("/v2/models/numbers/infer", keys(b'{"inputs":[],"parameters":{', b"}}"), (400,)),
    "V2 inputs": Attack(
        "/v2/models/numbers/infer",
        repeated(b'{"inputs":[', b'{"name":"x","shape":[0],"datatype":"FP32","data":[]}', b"]}"), (400,)),
    "V2 unknown fields": Attack("/v2/models/numbers/infer", keys(b"{", b',"inputs":[]}'), (400,)),
    "V1 rows": Attack("/v1/models/numbers:predict", repeated(b'{"instances":[', b"[1]", b"]}")),
    "V1 numbers": Attack("/v1/models/numbers:predict", repeated(b'{"inputs":[', b"1", b"]}"), (200,)),
    "V1 nulls": Attack("/v1/models/numbers:predict", repeated(b'{"inputs":[', b"null", b"]}"), (200,)),
    "V1 keys": Attack("/v1/models/numbers:predict", keys(b'{"instances":[{', b"}]}")),
    "generate keys": Attack("/v2/models/numbers/generate", keys(b"{", b"}"), (400,)),
    "generate numbers": Attack("/v2/models/numbers/generate", repeated(b'{"x":[', b"1", b"]}"), (200,)),
    "generate_stream keys": Attack("/v2/models/numbers/generate_stream", keys(b"{", b"}"), (400,)),
    "chat parts": Attack(
        "/v1/chat/completions",
        repeated(b'{"model":"chat","messages":[{"role":"user","content":[', b'{"type":"text","text":""}', b"]}]}")),
    "chat text": Attack(
        "/v1/chat/completions",
        lambda size: b'{"model":"chat","messages":[{"role":"user","content":"%b"}]}' % control(size)),
    "chat keys": Attack("/v1/chat/completions", keys(b'{"model":"chat","metadata":{', b"}}"), (400,)),
    "completion tokens": Attack("/v1/completions", repeated(b'{"model":"chat","prompt":[', b"1", b"]}"), (400,)),
    "completion text": Attack(
        "/v1/completions", lambda size: b'{"model":"chat","prompt":"%b"}' % ("é".encode() * (size // 2)), (200,)),
    "embedding texts": Attack("/v1/embeddings", repeated(b'{"model":"embed","input":[', b'""', b"]}"), (400,)),
    "predict batch": Attack(
        "/predict", repeated(b'{"model_name":"numbers","batch":[', b"[" + b"1," * 999 + b"1]", b"]}")),
    "predict lists": Attack("/predict", repeated(b'{"model_name":"numbers","inputs":[', b"[]", b"]}")),
    "TRTIS empty strings": Attack(
        TRTIS, lambda size: bytes(size // 4 * 4),
        headers=lambda body: {
            "NV-InferRequest": f'batch_size: 1 input {{ name: "x" dims: {len(body) // 4} batch_byte_size: {len(body)}'
            ' } output { name: "y" }'
        }),
}  # fmt: skip
MESSAGES: dict[str, Callable[[int], bytes]] = {
    "gRPC empty strings": lambda size: message(b"strings", b"BYTES", size // 4, raw=bytes(size // 4 * 4)),
    "gRPC empty strings for numbers": lambda size: message(b"numbers", b"BYTES", size // 4, raw=bytes(size // 4 * 4)),
    "gRPC bytes_contents": lambda size: message(b"strings", b"BYTES", size // 2, delimited(8, b"") * (size // 2)),
    "gRPC packed int64_contents": lambda size: message(b"longs", b"INT64", size, delimited(3, b"\1" * size)),
    "gRPC int64_contents": lambda size: message(b"longs", b"INT64", size // 2, (tag(3, 0) + b"\1") * (size // 2)),
    "gRPC fields": lambda size: delimited(1, b"numbers") + delimited(4, b"") * (size // 2),
}


@pytest.fixture(scope="module")
def server(serve_module: Serve, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    folder = tmp_path_factory.mktemp("models")
    for name, datatype in (("numbers", "FP32"), ("strings", "STRING"), ("longs", "INT64")):
        write_python(folder, name, ECHO, ECHO_CONFIG % (datatype, datatype))
    write_python(folder, "chat", CHAT, CHAT_CONFIG)
    write_python(folder, "embed", EMBED, EMBED_CONFIG)
    return serve_module(folder, "--grpc-port", "0", "--max-request-size-mb", "64")


@pytest.fixture(scope="module")
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(grpc_address(server), options=unlimited) as opened:
        yield opened


def longest_health_check(server: RunningServer, attack: Callable[[], object]) -> float:
    """Return the seconds that health/live took at most while the attack ran."""
    ended, longest = threading.Event(), 0.0
    ask = rendered("GET", "/v2/health/live", b"", {}, server.address)

    def run() -> None:
        try:
            attack()
        finally:
            ended.set()

    with server.connect() as connection:
        thread = threading.Thread(target=run)
        thread.start()
        while not ended.wait(0.002):
            started = monotonic()
            connection.sendall(ask)
            assert read_answer(connection, "GET").status == 200
            longest = max(longest, monotonic() - started)
        thread.join()
    return longest


def send(server: RunningServer, attack: Attack, size: int, packed: bool) -> Callable[[], None]:
    body = attack.body(size)
    headers = attack.headers(body)
    if packed:
        headers["Content-Encoding"] = "gzip"
        body = gzip.compress(body, 1)
    raw = rendered("POST", attack.path, body, headers, server.address)

    def run() -> None:
        with server.connect() as connection:
            connection.sendall(raw)
            answer = read_answer(connection)
        assert answer.status in attack.statuses, (answer.status, answer.body[:300])

    return run


def call(channel: grpc.Channel, body: bytes, packed: bool) -> Callable[[], None]:
    compression = grpc.Compression.Gzip if packed else None

    def run() -> None:
        status = grpc.StatusCode.OK
        try:
            channel.unary_unary(GRPC)(body, timeout=60, compression=compression)
        except grpc.RpcError as error:
            status = error.code()  # type: ignore[attr-defined]
        assert status in {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}, status

    return run


def helpers(server: RunningServer) -> list[int]:
    """Return the process ids of the server's helper processes."""
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if b"codec_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def check(server: RunningServer, attack: Callable[[], None], bound_s: float) -> None:
    longest = []
    for _ in range(ATTEMPTS):
        longest.append(longest_health_check(server, attack))
        if longest[-1] < bound_s:
            break
    assert min(longest) < bound_s, longest
    assert len(helpers(server)) <= 1


@pytest.mark.parametrize("name", ATTACKS)
def test_health_checks_are_answered_during(name: str, server: RunningServer) -> None:
    packed = bool(list(ATTACKS).index(name) % 2)
    check(server, send(server, ATTACKS[name], SIZE, packed), BUSY_S)


@pytest.mark.parametrize("name", MESSAGES)
def test_health_checks_are_answered_during_messages(name: str, server: RunningServer, channel: grpc.Channel) -> None:
    packed = bool(list(MESSAGES).index(name) % 2)
    check(server, call(channel, MESSAGES[name](SIZE), packed), BUSY_S)


def test_the_codec_process_is_replaced_when_it_was_killed(server: RunningServer) -> None:
    numbers = send(server, ATTACKS["V2 JSON numbers"], SIZE, packed=False)
    numbers()
    (killed,) = helpers(server)
    os.kill(killed, signal.SIGKILL)
    numbers()
    (new,) = helpers(server)
    assert new != killed


@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", [*ATTACKS, *MESSAGES])
def test_no_request_delays_health_checks(name: str, packed: bool, server: RunningServer, channel: grpc.Channel) -> None:
    """The bar, in milliseconds of a quiet machine."""
    if name in ATTACKS:
        check(server, send(server, ATTACKS[name], LARGEST, packed), QUIET_S)
    else:
        check(server, call(channel, MESSAGES[name](LARGEST), packed), QUIET_S)
