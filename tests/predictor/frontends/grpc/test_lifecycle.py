"""The port from start to end: taken, off, cancelled calls, deadlines, draining."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.onnx_models import write_python
from tests.ports import free_port
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.serving import RunningServer

from pilotlight.wire.http2 import frames
from pilotlight_predictor.config import ServerSettings
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.frontends.grpc import server as grpc_server

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
Serve = Callable[..., RunningServer]
# Zeros are answered at once, everything else once the file exists.
HELD = """
import pathlib
import time

INPUTS = {{"x": ("FP32", [1])}}
OUTPUTS = {{"y": ("FP32", [1])}}


def predict(x):
    while x[0] and not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)
    return {{"y": x}}
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Once it exists, what the model holds goes on."""
    return tmp_path / "go on"


@pytest.fixture
def repository(tmp_path: Path, gate: Path) -> Path:
    write_python(tmp_path / "models", "held", HELD.format(gate=str(gate)))
    return tmp_path / "models"


@pytest.fixture
def request_of(message: Callable[..., Any]) -> Callable[[float], bytes]:
    def make(value: float) -> bytes:
        made = message("inference.ModelInferRequest", model_name="held")
        made.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(value)
        return bytes(made.SerializeToString())

    return make


def in_flight(server: RunningServer) -> int:
    return int(server.get("/status").json()["in_flight"])


def executions(server: RunningServer) -> int:
    return int(server.get("/v2/models/held/stats").json()["model_stats"][0]["execution_count"])


@pytest.mark.parametrize("deadline", [False, True])
def test_a_call_that_its_client_gave_up_is_not_run(
    serve: Serve, repository: Path, gate: Path, request_of: Callable[[float], bytes], deadline: bool
) -> None:
    server = serve(repository, "--grpc-port", "0")
    before = executions(server)
    with grpc.insecure_channel(grpc_address(server)) as channel:
        infer = channel.unary_unary(INFER)
        running = infer.future(request_of(1.0))
        server.wait_until(lambda: in_flight(server) == 1, "running the first")
        waiting = infer.future(request_of(0.0), timeout=0.3 if deadline else None)
        if not deadline:
            server.wait_until(lambda: in_flight(server) == 2, "taking the second")
            waiting.cancel()
        assert waiting.code() is (grpc.StatusCode.DEADLINE_EXCEEDED if deadline else grpc.StatusCode.CANCELLED)
        channel.unary_unary(LIVE)(b"", timeout=60)  # behind the second, which the server knows of then
        server.wait_until(lambda: in_flight(server) == 1, "free of the second")
        gate.touch()
        assert running.result(60)
    server.wait_until(lambda: in_flight(server) == 0, "idle")
    assert executions(server) == before + 1


def test_a_stream_that_is_left_frees_its_places(
    serve: Serve, repository: Path, gate: Path, request_of: Callable[[float], bytes]
) -> None:
    server = serve(repository, "--grpc-port", "0")
    with grpc.insecure_channel(grpc_address(server)) as channel:
        call = channel.stream_stream(STREAM)(iter([request_of(1.0)] * 5))
        server.wait_until(lambda: in_flight(server) == 5, "taking five")
        call.cancel()
        server.wait_until(lambda: in_flight(server) <= 1, "free of them")
    gate.touch()


def test_a_stop_finishes_what_is_in_flight_and_refuses_the_rest(
    serve: Serve, repository: Path, gate: Path, request_of: Callable[[float], bytes]
) -> None:
    server = serve(repository, "--grpc-port", "0")
    with grpc.insecure_channel(grpc_address(server)) as channel:
        infer = channel.unary_unary(INFER)
        running = infer.future(request_of(1.0))
        server.wait_until(lambda: in_flight(server) == 1, "running")
        server.process.terminate()
        server.wait_for_event("stopping")
        codes = set()
        while not running.done() and grpc.StatusCode.UNAVAILABLE not in codes:
            late = infer.future(request_of(0.0), timeout=1)
            codes.add(late.code())
        gate.touch()
        assert running.result(60)
    assert grpc.StatusCode.UNAVAILABLE in codes
    # One that crosses the wish that its client goes is taken, and waits for the one that runs until its time is over.
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert server.process.wait(60) == 0


def test_a_stop_does_not_wait_for_an_idle_stream(
    serve: Serve, repository: Path, request_of: Callable[[float], bytes]
) -> None:
    server = serve(repository, "--grpc-port", "0", "--exit-timeout-secs", "600")
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield request_of(0.0)
        over.wait(600)

    with grpc.insecure_channel(grpc_address(server)) as channel:
        call = channel.stream_stream(STREAM)(requests())
        next(call)
        server.process.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        over.set()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert server.process.wait(60) == 0


def test_a_port_that_was_asked_for_and_is_taken_ends_the_start(serve: Serve, repository: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = serve(repository, "--grpc-port", str(taken.getsockname()[1]), ready=False)
        assert server.process.wait(60) == 1
    (failed,) = [line for line in server.log() if line["event"] == "failed"]
    assert "--grpc-port" in failed["message"]


def test_a_default_port_that_is_taken_costs_grpc_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        settings = ServerSettings(host="127.0.0.1", grpc_port=number)
        with pytest.raises(LoadFailed, match="choose another with --grpc-port"):
            grpc_server.reserve_port(settings)
        monkeypatch.setattr(grpc_server, "GRPC_PORT", number)
        assert grpc_server.reserve_port(settings) is None


def test_a_port_is_taken_again_while_the_kernel_remembers_connections_of_it() -> None:
    settings = ServerSettings(host="127.0.0.1", grpc_port=free_port())
    for _ in range(2):
        held = grpc_server.reserve_port(settings)
        assert held is not None
        with held.listening_socket() as listener:
            listener.listen()
            with socket.create_connection((held.host, held.port)) as client:
                listener.accept()[0].close()  # who closes first is remembered
                assert client.recv(1) == b""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_is_taken_while_the_kernel_remembers_connections_of_another_program(workers: int) -> None:
    number = free_port()
    with (
        socket.create_server(("127.0.0.1", number)) as other,
        socket.create_connection(("127.0.0.1", number)) as client,
    ):
        other.accept()[0].close()
        assert client.recv(1) == b""
    held = grpc_server.reserve_port(ServerSettings(host="127.0.0.1", grpc_port=number, workers=workers))
    assert held is not None
    with held.listening_socket() as listener:
        listener.listen()
        socket.create_connection((held.host, held.port)).close()


def test_a_port_that_another_server_holds_is_taken_before_anybody_listens() -> None:
    settings = ServerSettings(host="127.0.0.1", grpc_port=free_port())
    held = grpc_server.reserve_port(settings)
    assert held is not None
    with held.bound_socket, pytest.raises(LoadFailed, match="in use"):
        grpc_server.reserve_port(settings)


@pytest.mark.parametrize("number", ["-1", "0"])
def test_no_server_imports_grpcio(serve: Serve, repository: Path, number: str) -> None:
    server = serve(repository, "--grpc-port", number)
    if number == "0":
        grpc_address(server)
    assert "cygrpc" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    assert number == "0" or not [line for line in server.log() if line["event"] == "grpc.listening"]


def test_a_machine_without_grpcio_serves_grpc_too(serve: Serve, repository: Path, tmp_path: Path) -> None:
    broken = tmp_path / "without" / "grpc"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no grpcio here')\n")
    server = serve(repository, "--grpc-port", "0", env={"PYTHONPATH": str(broken.parent)})
    with grpc.insecure_channel(grpc_address(server)) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)


def test_a_connection_is_drained_at_its_maximum_age(serve: Serve, repository: Path) -> None:
    server = serve(repository, "--grpc-port=0", "--grpc-max-connection-age=300", "--grpc-max-connection-age-grace=300")
    port = int(server.wait_for_event("grpc.listening")["grpc_port"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(frames.PREFACE + frames.settings({}))
        received = b""
        while chunk := connection.recv(4096):  # until the server closes it
            received += chunk
    assert frames.frame(frames.GOAWAY, 0, 0, b"")[3:4] in received
