"""Malformed bodies and messages of /predict: never a status of ours, never a hang, and good ones are served after."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.onnx_models import write_identity
from tests.predictor.fuzzing import fuzz, unshaken
from tests.predictor.protocols.v2.malformed import mutated, spliced
from tests.serving import RunningServer
from websockets.sync.client import ClientConnection, connect

FINE = {200, 404, 413, 422}
OFF = ("--rate-limit-enabled=false", "--input-validation-enabled=false")
MODELS = {"floats": "FP32", "bytes": "UINT8", "flags": "BOOL", "halves": "FP16", "texts": "BYTES"}
BASES: list[Any] = [
    {"inputs": [1, 0, 1], "model_name": "floats"},
    {"inputs": [1], "model_name": "bytes", "model_version": "1", "sticky_key": "k", "output": "y"},
    {"batch": [[1, 0], [0, 1]], "model_name": "flags", "model_version": "latest"},
    {"batch": [[0.5], [1, 2, 3], [0]], "model_name": "halves"},
    {"inputs": [1], "model_name": "texts"},
]
BODIES = mutated(BASES).map(lambda document: json.dumps(document).encode())
BODIES |= spliced([json.dumps(base).encode() for base in BASES])
GOOD = json.dumps(BASES[0])


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]
) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("fuzzed")
    for name, datatype in MODELS.items():
        write_identity(repository, name, datatype)
    server = serve_module(repository, *OFF)
    with unshaken(server, lambda: server.post("/predict", GOOD.encode())):
        yield server
    assert server.post("/predict", GOOD.encode()).json()["predictions"] == [1, 0, 1]
    assert server.get("/status").json()["in_flight"] == 0


def body(server: RunningServer, raw: bytes, full: bool) -> None:
    answer = server.post("/predict", raw, full=full)
    assert answer.status in FINE, (answer, raw[:1000])
    assert answer.json()["predictions" if answer.status == 200 else "detail"], raw[:1000]


def message(connection: ClientConnection, raw: bytes, text: bool) -> None:
    connection.send(raw.decode("utf-8", "replace") if text else raw)
    answer = json.loads(connection.recv(20))
    assert answer.keys() & {"predictions", "error"}, raw[:1000]


def bodies(server: RunningServer, how: Any) -> None:
    how(given(raw=BODIES, full=st.booleans())(lambda raw, full: body(server, raw, full)))()


def messages(server: RunningServer, how: Any) -> None:
    # Pings would draw random numbers in a thread, which hypothesis takes for the strategy's.
    with connect(
        f"ws://{server.address}/predict/stream", proxy=None, ping_interval=None, open_timeout=60
    ) as connection:
        how(given(raw=BODIES, text=st.booleans())(lambda raw, text: message(connection, raw, text)))()
        connection.send(GOOD)
        assert json.loads(connection.recv(20))["predictions"] == [1, 0, 1]


@pytest.mark.parametrize("holds", [bodies, messages])
def test_nothing_malformed_is_our_mistake(target: RunningServer, holds: Callable[..., None]) -> None:
    holds(target, fuzz(300))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("holds", [bodies, messages])
def test_nothing_malformed_is_our_mistake_in_many_more_cases(target: RunningServer, holds: Callable[..., None]) -> None:
    holds(target, fuzz(20_000, derandomize=False))
