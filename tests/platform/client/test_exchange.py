"""What is repeated, what is not, and what a deadline says: against servers that misbehave on a real socket."""

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.certificates import Authority
from tests.eventually import eventually_async
from tests.onnx_models import write_identity
from tests.platform.client.conftest import Ask
from tests.platform.client.scripted_server import CLOSE, METADATA, RESULT, SILENCE, reply, scripted, starting
from tests.platform.gateway.bed import Bed, backend, play, route
from tests.serving import RunningServer

from pilotlight.client import (
    AsyncClient,
    Client,
    ColdStartTimeout,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidInput,
    ResponseError,
)
from pilotlight.contract import HEADER_COLD_START
from pilotlight.errors import PlatformError, TimedOut

READY = reply(200, METADATA)
DONE = reply(200, RESULT)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_server_that_starts_is_asked_until_it_answers(ask: Ask) -> None:
    with scripted(starting(after="0"), starting(after="0"), READY, starting("'m' is loading", "0"), DONE) as server:
        result = ask(server.url, "infer", "m", [1.0])
    assert result["y"] == [2.0]
    assert result.cold_start_s > 0
    assert len(server.requests) == 5


def test_the_gateway_s_cold_start_is_counted(ask: Ask) -> None:
    with scripted(reply(200, METADATA, {HEADER_COLD_START: "1500"}), DONE) as server:
        assert ask(server.url, "infer", "m", [1.0]).cold_start_s == 1.5


def test_a_deadline_in_a_cold_start_says_so(ask: Ask) -> None:
    begin = time.monotonic()
    with scripted(starting("'m' is loading")) as server, pytest.raises(ColdStartTimeout) as caught:
        ask(server.url, "infer", "m", [1.0], timeout=1.5)
    assert time.monotonic() - begin < 30
    assert f"{server.url}: still starting after" in str(caught.value)
    assert "('m' is loading); a cold start may need a longer timeout=" in str(caught.value)
    assert 0 < caught.value.waited_s <= 30
    assert isinstance(caught.value, TimedOut)
    assert isinstance(caught.value, TimeoutError)


def test_a_real_predictor_that_loads_is_a_cold_start(
    tmp_path: Path, serve: Callable[..., RunningServer], ask: Ask
) -> None:
    """Its model waits for a file at import, so it stays in its cold start until the test lets it go."""
    gate, folder = tmp_path / "go", tmp_path / "models" / "slow" / "1"
    folder.mkdir(parents=True)
    waiting = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    (folder / "model.py").write_text(
        waiting + 'INPUTS = {"x": ("FP32", [-1])}\nOUTPUTS = {"y": ("FP32", [-1])}\n\n\ndef predict(x):\n    return x\n'
    )
    server = serve(tmp_path / "models", ready=False)
    try:
        with pytest.raises(ColdStartTimeout, match="still starting after"):
            ask(server.url, "infer", "slow", [1.0], timeout=1.2)
    finally:
        gate.touch()
    result = ask(server.url, "infer", "slow", [1.0], timeout=120)
    assert result["y"] == [1.0]


def test_a_busy_server_is_no_cold_start(ask: Ask) -> None:
    full = starting("Exceeds maximum queue size: 1 requests wait for model 'm'")
    with scripted(READY, full) as server, pytest.raises(DeadlineExceeded) as caught:
        ask(server.url, "infer", "m", [1.0], timeout=1.5)
    assert not isinstance(caught.value, ColdStartTimeout)
    with scripted(reply(429, {"error": "too often"}, {"Retry-After": "0"})) as server:
        with pytest.raises(ResponseError, match="429: too often"):
            ask(server.url, "metadata", "m", client={"retries": 2})
        assert len(server.requests) == 3


def test_silence_ends_at_the_deadline(ask: Ask) -> None:
    with scripted(READY, SILENCE) as server, pytest.raises(DeadlineExceeded, match="no response within 0"):
        ask(server.url, "infer", "m", [1.0], timeout=0.5)
    assert len(server.requests) == 2


def test_a_response_that_drips_ends_at_the_deadline() -> None:
    """Each byte comes in time, the whole never does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000):
                    connection.sendall(bytes([byte]))
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client, pytest.raises(DeadlineExceeded):
            client.metadata("m", timeout=0.5)
        thread.join(60)


def test_a_refused_connection_is_repeated_and_then_an_error(ask: Ask) -> None:
    with pytest.raises(ConnectionFailed, match=r"no connection: .*refused") as caught:
        ask(f"http://127.0.0.1:{closed_port()}", "infer", "m", [1.0], client={"retries": 1})
    assert isinstance(caught.value, PlatformError)
    assert isinstance(caught.value, ConnectionError)


def test_a_server_that_comes_up_late_is_reached() -> None:
    async def scene() -> None:
        port = closed_port()
        async with AsyncClient(f"http://127.0.0.1:{port}", retries=20, timeout=60) as client:
            call = asyncio.create_task(client.models())
            await asyncio.sleep(0)
            server = await asyncio.start_server(_answer_models, "127.0.0.1", port)
            async with server:
                assert await call == ["m"]

    asyncio.run(scene())


async def _answer_models(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(reply(200, {"models": ["m"]}))
    await writer.drain()
    writer.close()


def test_an_inference_that_may_have_run_is_not_repeated(ask: Ask) -> None:
    with scripted(READY, CLOSE) as server, pytest.raises(ConnectionFailed, match="may have executed the request"):
        ask(server.url, "infer", "m", [1.0])
    assert len([head for head in server.requests if "/infer" in head]) == 1


def test_a_lost_get_is_repeated(ask: Ask) -> None:
    with scripted(CLOSE, CLOSE, READY) as server:
        assert ask(server.url, "metadata", "m")["name"] == "m"


def test_no_retries_means_none(ask: Ask) -> None:
    with scripted(starting()) as server, pytest.raises(ResponseError, match="503: initializing") as caught:
        ask(server.url, "metadata", "m", client={"retries": 0})
    assert caught.value.status == 503
    with scripted(CLOSE) as server, pytest.raises(ConnectionFailed):
        ask(server.url, "metadata", "m", client={"retries": 0})
    assert len(server.requests) == 1


def test_an_unavailable_model_is_an_error_at_once(ask: Ask) -> None:
    """503 without Retry-After: the gateway's answer for a model that cannot be loaded."""
    with scripted(reply(503, {"error": "the model cannot be loaded"})) as server:
        with pytest.raises(ResponseError, match="503: the model cannot be loaded"):
            ask(server.url, "infer", "m", [1.0])
        assert len(server.requests) == 1


def test_a_missing_token_is_explained_and_a_token_sent(ask: Ask) -> None:
    with scripted(reply(401, {"error": "no token"})) as server:
        with pytest.raises(ResponseError, match="401: no token; pass the service's token as token="):
            ask(server.url, "metadata", "m")
        with pytest.raises(ResponseError):
            ask(server.url, "metadata", "m", client={"token": "s3cret", "headers": {"X-A": "b"}})
        assert "Authorization: Bearer s3cret\r\n" in server.requests[1]
        assert "X-A: b\r\n" in server.requests[1]


def test_a_gzipped_response_is_unpacked(ask: Ask) -> None:
    packed = gzip.compress(b'{"models": ["m"]}')
    raw = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode() + packed
    with scripted(raw) as server:
        assert ask(server.url, "models", client={"headers": {"Accept-Encoding": "gzip"}}) == ["m"]


@pytest.mark.parametrize(
    "raw",
    [
        b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"models": ["m"]}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"models"\r\n8\r\n: ["m"]}\r\n0\r\n\r\n',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"models": ["m"]}',
    ],
)
def test_every_framing_of_a_response_is_read(ask: Ask, raw: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(raw)

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask(f"http://127.0.0.1:{listener.getsockname()[1]}", "models") == ["m"]
        thread.join(60)


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"])
def test_what_is_no_http_is_a_failed_connection(ask: Ask, raw: bytes) -> None:
    with scripted(raw) as server, pytest.raises(ConnectionFailed, match="the response is not HTTP"):
        ask(server.url, "metadata", "m", client={"retries": 0})


def test_connections_are_kept_and_replaced_when_the_server_closed_them() -> None:
    with scripted(READY, DONE, DONE) as server, Client(server.url) as client:
        for _ in range(3):
            client.infer("m", [1.0])
        assert server.connections == 1
        server.open[0].shutdown(socket.SHUT_RDWR)
        client.infer("m", [1.0])
        assert server.connections == 2


def test_a_certificate_is_verified_by_a_given_authority(
    tmp_path: Path, serve: Callable[..., RunningServer], ask: Ask
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    write_identity(tmp_path / "models", "m", "FP32")
    flags = ("--tls-cert", str(certificate), "--tls-key", str(key))
    server = serve(tmp_path / "models", *flags, ready=False)
    url = f"https://127.0.0.1:{server.port}"
    assert ask(url, "infer", "m", [1.5], client={"verify": str(authority.path)})["y"] == [1.5]
    assert ask(url, "ready", client={"verify": False})
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        ask(url, "models", client={"retries": 0})


def test_a_unix_socket_is_a_server_too(tmp_path: Path, serve: Callable[..., RunningServer], ask: Ask) -> None:
    write_identity(tmp_path / "models", "m", "FP32")
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    server = serve(tmp_path / "models", "--host", f"unix:{folder}", "--http-port", "8080", ready=False)
    assert ask(f"unix:{folder}/{server.port}", "infer", "m", [1.5], timeout=60)["y"] == [1.5]


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("127.0.0.1:8080", {}, "write it as http://HOST:PORT/SERVICE"),
        ("ftp://a", {}, "write it as http"),
        ("http://me:secret@a", {}, "holds credentials"),
        ("http://a", {"headers": {"X": "a\r\nEvil: b"}}, "header 'X' has a line break"),
        ("http://a", {"token": "a\nb"}, "header 'Authorization' has a line break"),
    ],
)
def test_arguments_that_make_no_request_are_refused(url: str, options: dict[str, object], message: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidInput, match=message) as caught:
            kind(url, **options)  # type: ignore[arg-type]
        assert "secret" not in str(caught.value)


def test_a_timeout_of_nothing_is_refused(ask: Ask) -> None:
    with pytest.raises(InvalidInput, match="timeout is 0, must be more than 0 seconds"):
        ask("http://127.0.0.1:9", "models", timeout=0)


def test_a_long_upload_that_is_refused_has_the_server_s_answer(
    tmp_path: Path, serve: Callable[..., RunningServer], ask: Ask
) -> None:
    write_identity(tmp_path / "models", "m", "FP32")
    server = serve(tmp_path / "models", "--http-max-input-size", "1000")
    with pytest.raises((ResponseError, ConnectionFailed), match=r"413|connection"):
        ask(server.url, "infer", "m", np.zeros(5_000_000, np.float32))


def test_closing_a_client_closes_its_connections() -> None:
    async def scene() -> None:
        with scripted(READY) as server:
            async with AsyncClient(server.url) as client:
                await client.metadata("m")
            await eventually_async(lambda: server.open[0].fileno() == -1, "the connection to end")

    asyncio.run(scene())


def test_a_service_at_zero_that_does_not_start_in_time_is_a_cold_start() -> None:
    """The real gateway holds the request, and answers before the client's deadline."""

    async def case(bed: Bed) -> None:
        bed.publish(route("iris", backend("iris-1")))
        async with AsyncClient(f"http://127.0.0.1:{bed.port}/iris", timeout=1.5) as client:
            with pytest.raises(ColdStartTimeout, match=r"still starting after .*no replica of 'iris' was free within"):
                await client.infer("iris", [1.0])

    play(case)
