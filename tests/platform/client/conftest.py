"""A real predictor for both clients, and one way to call either."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.onnx_models import write_identity, write_python
from tests.predictor.zoo import write_zoo
from tests.serving import RunningServer

from pilotlight.client import AsyncClient, Client

Ask = Callable[..., Any]
# Speaks the words of the last message one by one; it waits before "wait".
SPEAKER = """
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.speak, args=[request]).start()

    def speak(self, request):
        sender = request.get_response_sender()
        given = pb_utils.get_input_tensor_by_name(request, "messages").as_numpy()[0]
        messages = json.loads(given or '[{"content": "warm-up"}]')
        for word in messages[-1]["content"].split():
            if word == "wait":
                time.sleep(30)
            tensor = pb_utils.Tensor("text_output", np.array([word + " "], object))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SPEAKER_CONFIG = """
backend: "python"
input [ { name: "messages" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
LENGTHS = """
import numpy as np

INPUTS = {"text": ("BYTES", [-1, 1])}
OUTPUTS = {"embedding": ("FP32", [-1, 2])}


def predict(text):
    return {"embedding": np.array([[len(item), 1.5] for item in text.ravel()], dtype=np.float32)}
"""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, serve_session: Callable[..., RunningServer]) -> RunningServer:
    """The zoo, a model that chats and one that embeds. No test may change them."""
    repository = write_zoo(tmp_path_factory.mktemp("client-zoo"))
    write_python(repository, "speaker", SPEAKER, SPEAKER_CONFIG)
    write_python(repository, "lengths", LENGTHS)
    write_identity(repository, "rows", "FP32", ("batch", 4), "max_batch_size: 8")
    return serve_session(repository)


@pytest.fixture(params=["Client", "AsyncClient"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """ask(url, method, *arguments): one call of a new client, by both clients; streams become lists."""
    return ask_blocking if request.param == "Client" else lambda *a, **k: asyncio.run(ask_async(*a, **k))


def ask_blocking(url: str, method: str, *arguments: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
    with Client(url, **(client or {})) as made:
        result = getattr(made, method)(*arguments, **options)
        return list(result) if method.startswith("stream") else result


async def ask_async(
    url: str, method: str, *arguments: Any, client: dict[str, Any] | None = None, **options: Any
) -> Any:
    async with AsyncClient(url, **(client or {})) as made:
        call = getattr(made, method)(*arguments, **options)
        return [part async for part in call] if method.startswith("stream") else await call


@pytest.fixture(scope="session")
def one_model(tmp_path_factory: pytest.TempPathFactory, serve_session: Callable[..., RunningServer]) -> RunningServer:
    repository: Path = tmp_path_factory.mktemp("one-model")
    write_identity(repository, "only", "FP32", ("batch", 4), "max_batch_size: 8")
    return serve_session(repository)
