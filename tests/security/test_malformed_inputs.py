"""Malformed inputs by the hundred, and by the 10,000 in the long form: no 500, 502 or 504, no hang, no growth.

One predictor takes the inputs of all protocols, and a gateway stands before it in some. Health checks are asked in
between; afterwards the server lives, has logged no error, and is not much larger than before.
"""

import asyncio
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import grpc
import pytest
from tests.conftest import Serve
from tests.onnx_models import write_add_sub, write_identity, write_python
from tests.platform.gateway.linked import Linked, linked
from tests.ports import free_port
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.predictor.models.bls.triton_models import DECOUPLED, config, tensor, write_model
from tests.security import corpus, stream_corpus
from tests.serving import Answer, RunningServer, Unbuffered, read_answer, rendered

from pilotlight.gateway.routing_table import Backend, Replica, Route

pytestmark = pytest.mark.security

FAULTS = (500, 502, 504)
GRPC_FAULTS = ("UNKNOWN", "INTERNAL", "DATA_LOSS", "DEADLINE_EXCEEDED", "UNAVAILABLE")
OPAQUE = b"internal error"  # in a response whose status is sent already: of streams
WEBSOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
KEY = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
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
PARTS = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for part in tensor_of(request, "x").ravel():
                sender.send(response_of(y=np.array([part], np.object_)))
            sender.send(flags=FINAL)
"""
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
    write_model(folder, "parts", PARTS, config([tensor("x", "STRING", "-1")], [tensor("y", "STRING", "1")], DECOUPLED))
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

    def __call__(self, raw: bytes) -> Answer:
        """Return the answer. A kept connection may have been closed meanwhile, a new one has an answer."""
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
            return answer
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
            with suppress(OSError):  # it has closed the connection
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
            answer = client(request.render(chunked=number % 5 == 4))
        except (OSError, ValueError) as error:
            raise AssertionError(f"{protocol} input {number}: {error!r}: {request}"[:3000]) from error
        failed = answer.status in FAULTS or OPAQUE in answer.body
        assert not failed, f"{protocol} input {number}: {answer} for {request}"[:3000]

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


def check_messages(server: RunningServer, port: int, count: int) -> None:
    inputs = corpus.messages(count, 19)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def send(number: int) -> None:
            method, message = next(inputs)
            call = channel.unary_unary(method).future(message, timeout=HANG_S)
            assert call.code().name not in GRPC_FAULTS, (number, method, message, call.details())

        hold(server, send, count)


def check_streams(server: RunningServer, port: int, count: int) -> None:
    """An error of a message comes in the stream; one that cannot be read ends it with a status of the client."""
    inputs = stream_corpus.streams(count, 19)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")

        def send(number: int) -> None:
            messages = next(inputs)
            call, answers = method(iter(messages), timeout=HANG_S), []
            with suppress(grpc.RpcError):
                answers.extend(call)
            failed = call.code().name in GRPC_FAULTS or any(OPAQUE in answer for answer in answers)
            assert not failed, (number, call.code(), call.details(), messages, answers)

        hold(server, send, count)


def grpc_port(server: RunningServer) -> int:
    return int(grpc_address(server).rpartition(":")[2])


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_messages_get_a_status_of_the_client(server: RunningServer, count: int) -> None:
    check_messages(server, grpc_port(server), count)


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_messages_of_streams_get_an_error_of_the_client(server: RunningServer, count: int) -> None:
    check_streams(server, grpc_port(server), count)


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_frames_end_the_connection_and_nothing_else(server: RunningServer, count: int) -> None:
    check_connections(server, grpc_port(server), count)


def check_connections(server: RunningServer, port: int, count: int) -> None:
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
            assert (await asyncio.to_thread(ready, raw)).status == 200
            ready.close()
            for check in (check_heads, lambda *to: check_requests(*to[:2], "V2 JSON", *to[2:])):
                await asyncio.to_thread(check, server, gateway.port, count, "/floats")

    asyncio.run(case())


class WebSocketClient:
    """Sends messages on one WebSocket, and opens another when the server has closed it."""

    def __init__(self, port: int, prefix: str = "") -> None:
        self._port, self._prefix = port, prefix
        self._socket: socket.socket | None = None

    def handshake(self) -> bytes:
        return rendered("GET", f"{self._prefix}/predict/stream", b"", {**WEBSOCKET, **KEY}, corpus.HOST)

    def __call__(self, opcode: int, payload: bytes) -> bytes:
        """Return the response, or the payload of the frame that closes the WebSocket."""
        if self._socket is None:
            self._socket = connect(self._port)
            self._socket.sendall(self.handshake())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += Unbuffered(self._socket).read(1)
            assert head.startswith(b"HTTP/1.1 101"), head
        self._socket.sendall(stream_corpus.frame(opcode, payload))
        reader = Unbuffered(self._socket)
        first, size = reader.read(2)
        if size > 125:
            size = struct.unpack(">H" if size == 126 else ">Q", reader.read(2 if size == 126 else 8))[0]
        answer = reader.read(size)
        if first & 15 == stream_corpus.CLOSE:
            self.close()
        return answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


INTERNAL = struct.pack(">H", 1011)  # as the code of a close frame


def check_websockets(server: RunningServer, port: int, count: int, prefix: str = "") -> None:
    client, messages = WebSocketClient(port, prefix), stream_corpus.websocket_messages(count, 19)
    connections = stream_corpus.websocket_frames(count, 19)

    def send(number: int) -> None:
        opcode, message = next(messages)
        answer = client(opcode, message)
        assert not answer.startswith(INTERNAL), (number, message, answer)
        assert OPAQUE not in answer, (number, message, answer)
        frames = next(connections)
        try:
            said = say_and_leave(port, client.handshake() + frames)
        except TimeoutError as error:
            raise AssertionError(f"WebSocket {number} hangs: {frames!r}"[:3000]) from error
        assert INTERNAL not in said, (number, frames, said)

    try:
        hold(server, send, count)
    finally:
        client.close()


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_messages_and_frames_of_websockets(server: RunningServer, count: int) -> None:
    check_websockets(server, server.port, count)


@pytest.mark.parametrize("count", COUNTS)
def test_malformed_streams_through_the_gateway(server: RunningServer, tmp_path: Path, count: int) -> None:
    """gRPC and WebSockets: what the predictor says of them is passed on, and the gateway serves on."""

    async def case() -> None:
        async with linked(tmp_path) as gateway:
            port = free_port()
            replicas = (Replica("one", server.port, grpc_port=grpc_port(server)),)
            backend = Backend("floats-1", "floats", 100, replicas)
            await gateway.publish(Route("default", "floats", (backend,), grpc_port=port))
            await asyncio.to_thread(check_websockets, server, gateway.port, count, "/floats")
            before = gateway_rss(gateway)
            for check in (check_messages, check_streams, check_connections, check_messages):
                await asyncio.to_thread(check, server, port, count)
            assert gateway_rss(gateway) - before < GROWTH

    asyncio.run(case())


def gateway_rss(gateway: Linked) -> int:
    text = Path(f"/proc/{gateway.link.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS"))
