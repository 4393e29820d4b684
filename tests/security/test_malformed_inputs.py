"""Malformed inputs by the hundred, and by the 10,000 in the long form: no 500, 502 or 504, no hang, no growth.

One predictor takes the inputs of all protocols, and a gateway stands before it in some. Health checks are asked in
between; afterwards the server lives, has logged no error, and is not much larger than before.
"""

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import grpc
import pytest
from tests.conftest import Serve
from tests.onnx_models import write_add_sub, write_identity, write_python
from tests.platform.gateway.linked import linked
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.security import corpus
from tests.serving import RunningServer, read_answer, rendered

from pilotlight.gateway.routing_table import Backend, Replica, Route

pytestmark = pytest.mark.security

FAULTS = (500, 502, 504)
GRPC_FAULTS = ("UNKNOWN", "INTERNAL", "DATA_LOSS", "DEADLINE_EXCEEDED")
GROWTH = 64 << 20
HANG_S = 20.0  # on a busy machine
HEALTH_EVERY = 100
PAUSE_S = 0.02  # for an answer to bytes that may be no whole request
COUNTS = [300, pytest.param(10_000, marks=pytest.mark.long)]
CHAT = """
import numpy as np

INPUTS = {"messages": ("BYTES", [1]), "text_input": ("BYTES", [1])}
OUTPUTS = {"text_output": ("BYTES", [1])}


def predict(messages=None, text_input=None):
    found = [each for each in (messages, text_input) if each is not None]
    return {"text_output": found[0] if found else np.array([b""], dtype=object)}
"""
EMBED = """
import numpy as np


def predict(text):
    return {"embedding": np.ones((len(text), 3), np.float32)}
"""
CONFIG = """
backend: "python"
max_batch_size: %d
input [ %s ]
output [ { name: "%s" data_type: TYPE_%s dims: [ %d ] } ]
"""
INPUT = '{ name: "%s" data_type: TYPE_STRING dims: [ %d ] %s }'
ECHO = "def predict(x):\n    return {'y': x}\n"
CLASSES = 'max_batch_size: 8 output [ { name: "sum" label_filename: "labels.txt" }, { name: "difference" } ]'


@pytest.fixture(scope="module")
def server(serve_module: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    for name, datatype in (("floats", "FP32"), ("longs", "INT64"), ("flags", "BOOL"), ("texts", "BYTES")):
        write_identity(folder, name, datatype)
    (write_add_sub(folder, "add_sub", config=CLASSES) / "labels.txt").write_text("zero\none\n")
    optional = ", ".join(INPUT % (name, 1, "optional: true") for name in ("messages", "text_input"))
    write_python(folder, "chat", CHAT, CONFIG % (0, optional, "text_output", "STRING", 1))
    write_python(folder, "embed", EMBED, CONFIG % (64, INPUT % ("text", 1, ""), "embedding", "FP32", 3))
    write_python(folder, "echo", ECHO, CONFIG % (0, INPUT % ("x", -1, ""), "y", "STRING", -1))
    flags = ("--grpc-port", "0", "--rate-limit-enabled=false", "--input-validation-enabled=false")
    running = serve_module(folder, *flags)
    yield running
    assert [line for line in running.log() if line.get("level") == "ERROR"] == []


def hold(server: RunningServer, send: Callable[[int], None], count: int) -> None:
    """Send inputs by their number, and check the server in between and afterwards."""
    before = 0
    for number in range(count):
        send(number)
        if number % HEALTH_EVERY == HEALTH_EVERY - 1:
            started = monotonic()
            assert server.get("/v2/health/live").status == 200
            assert monotonic() - started < HANG_S
            before = before or server.rss_bytes()
    assert server.infer("floats", corpus.SEEDS["V2 JSON"][0][1]).status == 200
    assert server.process.poll() is None
    assert server.rss_bytes() - before < GROWTH


class Client:
    """Sends requests on one connection while the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: socket.socket | None = None

    def __call__(self, raw: bytes) -> int:
        """Return the status. A kept connection may have been closed meanwhile, a new one has an answer."""
        for _ in range(2):
            kept = self._connection is not None
            connection = self._connection or connect(self._port)
            self._connection = None
            try:
                connection.sendall(raw)
                answer = read_answer(connection)
            except ConnectionError:
                connection.close()
                if not kept:
                    raise
                continue
            if answer.headers.get("connection") == "close":
                connection.close()
            else:
                self._connection = connection
            return answer.status
        raise AssertionError("no answer")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def say_and_leave(port: int, raw: bytes) -> bytes:
    """Return all that the server says to these bytes, until it closes; it must, when the client has."""
    said = bytearray()
    with connect(port) as connection:
        try:
            connection.sendall(raw)
            if select.select([connection], [], [], PAUSE_S)[0]:
                said += connection.recv(1 << 16)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                said += piece
        except ConnectionError:  # a reset ends it as well
            pass
    return bytes(said)


def check_requests(server: RunningServer, port: int, protocol: str, count: int, prefix: str = "") -> None:
    client, inputs = Client(port), corpus.requests(protocol, count, 19)

    def send(number: int) -> None:
        request = next(inputs)
        request = request._replace(path=prefix + request.path)
        try:
            status = client(request.render(chunked=number % 5 == 4))
        except (OSError, ValueError) as error:
            raise AssertionError(f"{protocol} input {number}: {error!r}: {request}"[:3000]) from error
        assert status not in FAULTS, f"{protocol} input {number}: {status} for {request}"[:3000]

    try:
        hold(server, send, count)
    finally:
        client.close()


def check_heads(server: RunningServer, port: int, count: int, prefix: str = "") -> None:
    inputs = corpus.heads(count, 19, prefix)

    def send(number: int) -> None:
        raw = next(inputs)
        try:
            said = say_and_leave(port, raw)
        except TimeoutError as error:
            raise AssertionError(f"head {number} hangs: {raw!r}"[:3000]) from error
        assert not any(b"HTTP/1.1 %d" % status in said for status in FAULTS), (number, raw[:2000], said)

    hold(server, send, count)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("protocol", [*corpus.SEEDS, "V2 binary", "trtis"])
def test_malformed_requests_are_answered(server: RunningServer, protocol: str, count: int) -> None:
    check_requests(server, server.port, protocol, count)


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_heads_are_answered_or_closed(server: RunningServer, count: int) -> None:
    check_heads(server, server.port, count)


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_messages_get_a_status_of_the_client(server: RunningServer, count: int) -> None:
    inputs = corpus.messages(count, 19)
    with grpc.insecure_channel(grpc_address(server)) as channel:

        def send(number: int) -> None:
            method, message = next(inputs)
            call = channel.unary_unary(method).future(message, timeout=HANG_S)
            assert call.code().name not in GRPC_FAULTS, (number, method, message, call.details())

        hold(server, send, count)


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_frames_end_the_connection_and_nothing_else(server: RunningServer, count: int) -> None:
    port = int(grpc_address(server).rpartition(":")[2])
    inputs = corpus.connections(count, 19)

    def send(number: int) -> None:
        raw = next(inputs)
        try:
            say_and_leave(port, raw)
        except TimeoutError as error:
            raise AssertionError(f"connection {number} hangs: {raw!r}"[:3000]) from error

    hold(server, send, count)


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_requests_through_the_gateway(server: RunningServer, tmp_path: Path, count: int) -> None:
    """What the predictor says of them is passed on; none of them is taken for a failure of the replica."""

    async def case() -> None:
        async with linked(tmp_path) as gateway:
            replicas = (Replica("one", server.port),)
            await gateway.publish(Route("default", "floats", (Backend("floats-1", "floats", 100, replicas),)))
            raw = rendered("GET", "/floats/v2/health/ready", b"", {}, corpus.HOST)
            ready = Client(gateway.port)
            assert await asyncio.to_thread(ready, raw) == 200
            ready.close()
            for check in (check_heads, lambda *to: check_requests(*to[:2], "V2 JSON", *to[2:])):
                await asyncio.to_thread(check, server, gateway.port, count, "/floats")

    asyncio.run(case())
