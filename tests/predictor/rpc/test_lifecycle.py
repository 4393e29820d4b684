"""The port from start to end: taken, off, cancelled calls, deadlines, draining."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.onnx_models import write_python
from tests.predictor.rpc.conftest import grpc_address
from tests.predictor.zoo import MOODY
from tests.serving import RunningServer

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.rpc import port
from pilotlight_predictor.settings import ServerSettings

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
Serve = Callable[..., RunningServer]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_python(tmp_path / "models", "moody", MOODY)
    return tmp_path / "models"


@pytest.fixture
def request_of(message: Callable[..., Any]) -> Callable[[float], bytes]:
    def make(seconds: float) -> bytes:
        made = message("inference.ModelInferRequest", model_name="moody")
        made.inputs.add(name="seconds", datatype="FP32", shape=[1]).contents.fp32_contents.append(seconds)
        return bytes(made.SerializeToString())

    return make


def in_flight(server: RunningServer) -> int:
    return int(server.get("/status").json()["in_flight"])


def executions(server: RunningServer) -> int:
    return int(server.get("/v2/models/moody/stats").json()["model_stats"][0]["execution_count"])


@pytest.mark.parametrize("deadline", [False, True])
def test_a_call_that_its_client_gave_up_is_not_run(
    serve: Serve, repository: Path, request_of: Callable[[float], bytes], deadline: bool
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
        server.wait_until(lambda: in_flight(server) == 1, "free of the second")
        assert waiting.code() is (grpc.StatusCode.DEADLINE_EXCEEDED if deadline else grpc.StatusCode.CANCELLED)
        assert running.result(20)
    server.wait_until(lambda: in_flight(server) == 0, "idle")
    assert executions(server) == before + 1


def test_a_stream_that_is_left_frees_its_places(
    serve: Serve, repository: Path, request_of: Callable[[float], bytes]
) -> None:
    server = serve(repository, "--grpc-port", "0")
    with grpc.insecure_channel(grpc_address(server)) as channel:
        call = channel.stream_stream(STREAM)(iter([request_of(0.5)] * 5))
        server.wait_until(lambda: in_flight(server) == 5, "taking five")
        call.cancel()
        server.wait_until(lambda: in_flight(server) <= 1, "free of them")


def test_a_stop_finishes_what_is_in_flight_and_refuses_the_rest(
    serve: Serve, repository: Path, request_of: Callable[[float], bytes]
) -> None:
    server = serve(repository, "--grpc-port", "0")
    with grpc.insecure_channel(grpc_address(server)) as channel:
        infer = channel.unary_unary(INFER)
        running = infer.future(request_of(4.0))  # long enough for a late one to come, however busy the machine is
        server.wait_until(lambda: in_flight(server) == 1, "running")
        server.process.terminate()
        server.wait_for_event("stopping")
        codes = set()
        while not running.done():
            late = infer.future(request_of(0.0), timeout=5)
            codes.add(late.code())
        assert running.result(20)
    assert grpc.StatusCode.UNAVAILABLE in codes
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK}
    assert server.process.wait(20) == 0


def test_a_stop_does_not_wait_for_an_idle_stream(
    serve: Serve, repository: Path, request_of: Callable[[float], bytes]
) -> None:
    server = serve(repository, "--grpc-port", "0")
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield request_of(0.0)
        over.wait(30)

    with grpc.insecure_channel(grpc_address(server)) as channel:
        call = channel.stream_stream(STREAM)(requests())
        next(call)
        server.process.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        over.set()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert server.process.wait(10) == 0


def test_a_port_that_was_asked_for_and_is_taken_ends_the_start(serve: Serve, repository: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = serve(repository, "--grpc-port", str(taken.getsockname()[1]), ready=False)
        assert server.process.wait(20) == 1
    (failed,) = [line for line in server.log() if line["event"] == "failed"]
    assert "--grpc-port" in failed["message"]


def test_a_default_port_that_is_taken_costs_grpc_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        settings = ServerSettings(host="127.0.0.1", grpc_port=number)
        with pytest.raises(LoadFailed, match="choose another with --grpc-port"):
            port.hold(settings)
        monkeypatch.setattr(port, "GRPC_PORT", number)
        assert port.hold(settings) is None


def test_grpc_that_is_off_is_not_even_imported(serve: Serve, repository: Path) -> None:
    server = serve(repository)
    assert not [line for line in server.log() if line["event"] == "grpc.listening"]
    assert "cygrpc" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_a_machine_without_grpcio_serves_all_the_rest(serve: Serve, repository: Path, tmp_path: Path) -> None:
    broken = tmp_path / "without" / "grpc"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no grpcio here')\n")
    server = serve(repository, "--grpc-port", "0", env={"PYTHONPATH": str(broken.parent)})
    assert server.get("/v2/health/ready").status == 200
    assert not [line for line in server.log() if line["event"] in {"grpc.listening", "failed"}]
