"""WebSocket /predict/stream with a real client: order, errors, back-pressure, limits, ends; through the gateway too."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.onnx_models import write_identity, write_python
from tests.platform.gateway.bed import Bed, backend, play, route
from tests.predictor.zoo import MOODY
from tests.serving import RunningServer
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

Serve = Callable[..., RunningServer]
OPEN_S = 60.0  # the first connection waits for aiohttp's import
MANY = ("--rate-limit-messages-per-second", "100000")
# Begins with a number other than 0, and ends once a file `go` lies beside it.
GATED = """
from pathlib import Path
from time import sleep

INPUTS = {"x": ("FP32", [1])}
OUTPUTS = {"y": ("FP32", [1])}
HERE = Path(__file__).parent


def predict(x):
    if x[0]:
        (HERE / "begun").touch()
        while not (HERE / "go").exists():
            sleep(0.01)
    return {"y": x}
"""


@pytest.fixture(scope="module")
def moody(tmp_path_factory: pytest.TempPathFactory, serve_module: Serve) -> RunningServer:
    """Sleeps for the seconds that it is sent, or fails below 0; two at a time."""
    repository = tmp_path_factory.mktemp("moody")
    write_python(repository, "moody", MOODY, "instance_group [ { count: 2 kind: KIND_CPU } ]")
    return serve_module(repository, *MANY)


@pytest.fixture
def stream(moody: RunningServer) -> Iterator[ClientConnection]:
    with opened(moody) as connection:
        yield connection


def opened(server: RunningServer, **how: Any) -> ClientConnection:
    return connect(f"ws://{server.address}/predict/stream", proxy=None, **{"open_timeout": OPEN_S, **how})


def ask(connection: ClientConnection, message: Any) -> Any:
    connection.send(message if isinstance(message, str | bytes) else json.dumps(message))
    return json.loads(connection.recv(20))


def closed(connection: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        connection.recv(20)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_each_message_has_an_answer_as_a_request_has(stream: ClientConnection) -> None:
    answer = ask(stream, {"inputs": [0]})
    assert (answer["predictions"], answer["model_version"]) == ([0], "1")
    assert answer["latency_ms"] >= 0
    assert ask(stream, {"batch": [[0], [0.001]]})["predictions"] == [[0], [pytest.approx(0.001)]]
    assert ask(stream, b'{"inputs": [0]}')["predictions"] == [0]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("{}", "Missing inputs"),
        ("nope", "not valid JSON"),
        ('{"inputs": [NaN]}', "inputs[0]"),
        ('{"inputs": [1, 2]}', "inputs has 2 numbers, must have 1"),
        ('{"inputs": [1], "model_name": "other"}', "'other' is not found"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_a_bad_message_gets_an_error_frame_and_the_next_one_its_answer(
    stream: ClientConnection, message: Any, named: str
) -> None:
    answer = ask(stream, message)
    assert (list(answer), named in answer["error"]) == (["error"], True)
    assert ask(stream, {"inputs": [0]})["predictions"] == [0]


def test_answers_come_in_the_order_of_messages_though_a_later_one_is_done_first(stream: ClientConnection) -> None:
    sent = [0.3, 0.0, 0.02, 0.01, 0.0]
    for seconds in sent[:3]:
        stream.send(json.dumps({"inputs": [seconds]}))
    stream.send("{}")
    for seconds in sent[3:]:
        stream.send(json.dumps({"inputs": [seconds]}))
    answers = [json.loads(stream.recv(20)) for _ in range(6)]
    assert "error" in answers.pop(3)
    assert [answer["predictions"][0] for answer in answers] == pytest.approx(sent)


def test_a_failure_of_the_model_ends_it_with_1011_after_earlier_answers(stream: ClientConnection) -> None:
    for seconds in (0.05, -1, 0):
        stream.send(json.dumps({"inputs": [seconds]}))
    assert json.loads(stream.recv(20))["predictions"] == [pytest.approx(0.05)]
    code, reason = closed(stream)
    assert code == 1011
    assert "secret" not in reason


def test_a_client_that_sends_and_does_not_read_is_held_back(tmp_path: Path, serve: Serve) -> None:
    write_identity(tmp_path, "m", "FP32")
    server = serve(tmp_path, *MANY, "--max-sequence-length", "10000")
    message = json.dumps({"inputs": [1.5] * 9000}).encode()
    before = server.rss_bytes()

    async def flood() -> int:
        address = f"ws://{server.address}/predict/stream"
        how: dict[str, Any] = {"max_queue": 1, "write_limit": 1 << 16, "ping_interval": None, "open_timeout": OPEN_S}
        async with connect_async(address, proxy=None, **how) as client:
            sent = 0
            try:
                while sent < 2000:  # 70 MB
                    await asyncio.wait_for(client.send(message), 1.0)
                    sent += 1
            except TimeoutError:
                pass
            answers = [json.loads(await client.recv()) for _ in range(min(sent, 50))]
            assert all(answer["predictions"] == [1.5] * 9000 for answer in answers)
            client.transport.abort()
            return sent

    assert asyncio.run(flood()) < 1500
    assert server.rss_bytes() - before < 100 << 20
    assert server.get("/healthz").status == 200


def test_messages_are_let_go_once_they_are_answered(tmp_path: Path, serve: Serve) -> None:
    write_identity(tmp_path, "m", "FP32")
    server = serve(tmp_path, *MANY)
    fine, wrong = (text + " " * (1 << 20) for text in ('{"inputs": [1]}', '{"inputs": ["a"]}'))
    with opened(server, ping_interval=None) as connection:
        assert [next(iter(ask(connection, text))) for text in (fine, wrong)] == ["predictions", "error"]
        before = server.rss_bytes()
        for _ in range(100):  # 200 MB
            ask(connection, fine)
            ask(connection, wrong)
        assert server.rss_bytes() - before < 100 << 20


def test_a_silent_client_is_closed_with_1000_timeout_and_a_waiting_one_is_not(tmp_path: Path, serve: Serve) -> None:
    write_python(tmp_path, "moody", MOODY)
    server = serve(tmp_path, "--stream-idle-timeout-s", "3")  # a busy machine needs some of it to ask
    with opened(server) as connection:
        assert ask(connection, {"inputs": [4.0]})["predictions"] == [4]  # longer than the client may be silent
        assert closed(connection) == (1000, "Timeout")


def test_messages_a_second_are_limited_and_told(tmp_path: Path, serve: Serve) -> None:
    write_identity(tmp_path, "m", "FP32")
    server = serve(tmp_path)
    with opened(server) as connection:
        answers: list[dict[str, Any]] = []
        while not answers or "error" not in answers[-1]:  # as fast as it can be, on any machine
            for _ in range(400):
                connection.send('{"inputs": [1]}')
            answers += [json.loads(connection.recv(20)) for _ in range(400)]
            assert len(answers) < 40_000
    assert all("predictions" in answer for answer in answers[:100])
    refused = [answer for answer in answers if "error" in answer]
    assert refused
    assert "more than 100 messages a second" in refused[0]["error"]


def test_whoever_may_not_infer_gets_no_stream_and_who_sends_too_much_at_once_keeps_none(
    tmp_path: Path, serve: Serve
) -> None:
    write_identity(tmp_path / "models", "m", "FP32")
    (tmp_path / "token").write_text("open sesame")
    server = serve(tmp_path / "models", "--api-token-file", str(tmp_path / "token"), "--max-request-size-mb", "0.01")
    with pytest.raises(InvalidStatus) as caught:
        opened(server)
    assert caught.value.response.status_code == 401
    with opened(server, additional_headers={"Authorization": "Bearer open sesame"}) as connection:
        assert ask(connection, {"inputs": [1]})["predictions"] == [1]
        connection.send(" " * 20_000)
        assert closed(connection)[0] == 1009


def test_a_client_that_leaves_frees_its_places(moody: RunningServer) -> None:
    with opened(moody) as connection:
        for _ in range(12):
            connection.send('{"inputs": [4]}')
        moody.wait_until(lambda: moody.get("/status").json()["in_flight"] > 2, "at work")
        connection.socket.shutdown(socket.SHUT_RDWR)
    moody.wait_until(lambda: moody.get("/status").json()["in_flight"] == 0, "free again", 20)  # all take 24 s


def test_a_server_that_stops_answers_what_was_asked_and_goes_away(tmp_path: Path, serve: Serve) -> None:
    gates = write_python(tmp_path, "gated", GATED) / "1"
    server = serve(tmp_path)
    with opened(server) as idle, opened(server) as busy:
        busy.send('{"inputs": [0.5]}')
        server.wait_until((gates / "begun").exists, "at work")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_event("stopping")
        (gates / "go").touch()
        assert json.loads(busy.recv(20))["predictions"] == [0.5]
        assert closed(busy)[0] == closed(idle)[0] == 1001
    assert server.process.wait(30) == 0


def test_it_works_through_the_gateway(moody: RunningServer) -> None:
    async def case(bed: Bed) -> None:
        bed.publish(route("moody", backend("moody-1", moody.port)))
        address = f"ws://127.0.0.1:{bed.port}/moody/predict/stream"
        async with connect_async(address, proxy=None, open_timeout=OPEN_S) as client:
            for number in range(30):
                await client.send(json.dumps({"inputs": [number / 10_000]}))
            for number in range(30):
                answer = json.loads(await asyncio.wait_for(client.recv(), 20))
                assert answer["predictions"] == [pytest.approx(number / 10_000)]
        answered = await bed.ask("POST", "/moody/predict", {"inputs": [0]})
        assert answered.json()["predictions"] == [0]

    play(case)
