"""What was answered is let go at once: a circle that waits for the collector would keep its megabytes until then."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.onnx_models import write_identity, write_python
from tests.serving import RunningServer

FAILS = 'INPUTS = {"x": ("BYTES", [1])}\nOUTPUTS = {"y": ("BYTES", [1])}\n\n\ndef predict(x):\n    raise ValueError\n'
SAYS = """
import numpy as np

INPUTS = {"messages": ("BYTES", [1])}
OUTPUTS = {"text_output": ("BYTES", [1])}


def predict(messages):
    return {"text_output": np.array([b"hello"], dtype=object)}
"""
LARGE = "a" * (2 << 20)
TENSOR = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": [LARGE]}]}
CHAT = {"messages": [{"role": "user", "content": LARGE}]}
TIMES = 60  # of 2 MB
ROOM = 60 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, serve_module: Callable[..., RunningServer]) -> RunningServer:
    repository = tmp_path_factory.mktemp("large")
    write_identity(repository, "echo", "BYTES")
    write_python(repository, "fails", FAILS, "max_batch_size: 0")
    write_python(repository, "says", SAYS, "max_batch_size: 0")
    return serve_module(repository, "--warmup", "none")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param("/v2/models/echo/infer", TENSOR, 200, id="v2"),
        pytest.param("/v2/models/echo/infer", "{" + LARGE, 400, id="v2-malformed"),
        pytest.param("/v2/models/fails/infer", TENSOR, 500, id="v2-failing"),
        pytest.param("/v2/models/fails/generate", {"x": LARGE}, 500, id="generate-failing"),
        pytest.param("/v2/models/echo/generate_stream", {"x": LARGE}, 200, id="generate-stream"),
        pytest.param("/v2/models/fails/generate_stream", {"x": LARGE}, 500, id="generate-stream-failing"),
        pytest.param("/v1/models/echo:predict", "{" + LARGE, 400, id="v1-malformed"),
        pytest.param("/v1/chat/completions", CHAT, 200, id="chat"),
        pytest.param("/v1/chat/completions", {**CHAT, "n": "many"}, 400, id="chat-malformed"),
        pytest.param("/predict", "{" + LARGE, 422, id="predict-malformed"),
    ],
)
def test_a_large_request_is_gone_once_it_is_answered(server: RunningServer, path: str, body: Any, status: int) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    for _ in range(4):  # what a server keeps for good is there after this
        assert server.post(path, raw).status == status
    before = server.rss_bytes()
    for _ in range(TIMES):
        server.post(path, raw)
    assert server.rss_bytes() - before < ROOM
