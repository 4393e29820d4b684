"""Pings of clients and of the server: grpcio's keepalive against the limits, and a client that is gone."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tests.onnx_models import write_python
from tests.predictor.frontends.grpc.conftest import grpc_address
from tests.predictor.frontends.grpc.connection_harness import House, call, framed, play
from tests.predictor.frontends.grpc.connection_harness import data as data_frame
from tests.serving import RunningServer

from pilotlight.wire.http2 import frames
from pilotlight_predictor.config.grpc_settings import GrpcSettings

Serve = Callable[..., RunningServer]
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
ECHO = """
INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}


def predict(x):
    return {"y": x}
"""
PINGING = (
    ("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 1000), ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_python(tmp_path / "models", "echo", ECHO)
    return tmp_path / "models"


def idle_stream(address: str, seconds: float) -> tuple[grpc.StatusCode | None, str]:
    """Return how the server ends a stream without messages of a client that pings every second; None: not at all."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with grpc.insecure_channel(address, options=PINGING) as channel:
        stream = channel.stream_stream(STREAM)(requests())
        deadline = time.monotonic() + seconds
        while stream.is_active() and time.monotonic() < deadline:
            over.wait(0.05)
        ended = not stream.is_active()
        code, details = (stream.code(), stream.details()) if ended else (None, "")
        over.set()
        stream.cancel()
    return code, details


def test_a_client_that_pings_too_often_is_disconnected(serve: Serve, repository: Path) -> None:
    server = serve(repository, "--grpc-port=0", "--grpc-http2-max-ping-strikes=1")
    code, details = idle_stream(grpc_address(server), 20)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "too_many_pings" in details.lower() or "too many pings" in details.lower()
    with grpc.insecure_channel(grpc_address(server)) as channel:  # the server serves its other clients
        assert channel.unary_unary(LIVE)(b"", timeout=20)


@pytest.mark.parametrize(
    "flags",
    [[], ["--grpc-http2-max-ping-strikes=1", "--grpc-http2-min-recv-ping-interval-without-data=500"]],
    ids=["no limit", "pings in time"],
)
def test_a_client_within_the_limits_stays_connected(serve: Serve, repository: Path, flags: list[str]) -> None:
    server = serve(repository, "--grpc-port=0", *flags)
    assert idle_stream(grpc_address(server), 5) == (None, "")


def test_grpcio_acknowledges_the_pings_of_the_server(serve: Serve, repository: Path) -> None:
    server = serve(repository, "--grpc-port=0", "--grpc-keepalive-time=100", "--grpc-keepalive-timeout=2000")
    assert idle_stream(grpc_address(server), 3) == (None, "")


def kinds(house: House) -> list[int]:
    return [kind for kind, _ in house.said(0)]


def test_a_client_that_is_gone_is_closed_after_the_timeout() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        house = House(grpc=GrpcSettings(keepalive_time_ms=60_000.0, keepalive_timeout_ms=20_000.0))
        house.hear(call(1))  # a call whose message never comes
        started = loop.time()
        while not house.wire.aborted:
            await asyncio.sleep(0.5)
        assert 80 <= loop.time() - started <= 81
        assert kinds(house).count(frames.PING) == 1

    play(scene)


def test_responses_clear_the_strikes_of_a_client() -> None:
    async def scene() -> None:
        house = House(grpc=GrpcSettings(max_ping_strikes=1))
        ping = frames.frame(frames.PING, 0, 0, bytes(8))
        for number in range(1, 20, 2):
            house.hear(call(number), data_frame(number, framed(b"hi"), ends=True), ping)
        assert frames.GOAWAY not in kinds(house)
        house.hear(ping, ping)
        assert house.said(0)[-1][0] == frames.GOAWAY
        assert house.said(0)[-1][1][8:] == b"too_many_pings"
        assert house.wire.closed

    play(scene)


def test_a_client_that_reads_slowly_is_not_taken_for_gone() -> None:
    async def scene() -> None:
        house = House(grpc=GrpcSettings(keepalive_time_ms=1000.0, keepalive_timeout_ms=1000.0))
        house.hear(call(1, "Talk"))
        for _ in range(5):  # it takes seconds for what the socket holds, and nothing of it is read here
            house.line.pause_writing()
            await asyncio.sleep(4)
            house.line.resume_writing()
            house.hear(frames.frame(frames.PING, frames.ACK, 0, bytes(8)))
        assert not house.wire.closed
        await asyncio.sleep(4)
        assert house.wire.aborted

    play(scene)


def test_a_stream_outlives_the_age_of_its_connection() -> None:
    async def scene() -> None:
        house = House(grpc=GrpcSettings(max_connection_age_ms=1000.0))
        house.hear(call(1, "Talk"), data_frame(1, framed(b"a")))
        await asyncio.sleep(5)
        assert kinds(house).count(frames.GOAWAY) == 2
        house.hear(call(3), data_frame(3, framed(b"late"), ends=True))
        house.hear(data_frame(1, framed(b"b"), ends=True))
        await asyncio.sleep(1)
        assert house.answers(1) == [b"a", b"b"]
        assert [kind for kind, _ in house.said(3)] == [frames.RST_STREAM]
        assert house.wire.closed

    play(scene)


def test_a_stream_ends_with_the_grace_of_its_connection_or_when_the_server_stops() -> None:
    async def scene() -> None:
        old = House(grpc=GrpcSettings(max_connection_age_ms=1000.0, max_connection_grace_ms=3000.0))
        old.hear(call(1, "Talk"))
        await asyncio.sleep(3)
        assert not old.wire.closed
        await asyncio.sleep(2)
        assert old.wire.closed
        stopping = House(grpc=GrpcSettings(max_connection_age_ms=1000.0))
        stopping.hear(call(1, "Talk"))
        await asyncio.sleep(3)
        stopping.desk.close()
        await asyncio.sleep(1)
        assert stopping.status(1) == "14"
        assert stopping.wire.closed

    play(scene)
