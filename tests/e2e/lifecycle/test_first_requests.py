"""The first request of each kind after ready is answered about as fast as the second: nothing heavy waits for it."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.onnx_models import write_python
from tests.serving import RunningServer, json_tensor

Serve = Callable[..., RunningServer]
ATTEMPTS = 8  # a busy machine makes a request slower, never faster: one good attempt shows what the server does
MODEL = """
import numpy as np

INPUTS = {"text_input": ("BYTES", [-1, 1])}
OUTPUTS = {"text_output": ("BYTES", [-1, 1])}


def predict(text_input):
    return {"text_output": text_input}
"""
# aiohttp cannot be imported before the file `aiohttp` exists.
NO_AIOHTTP = """
import pathlib
import sys
import time


class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "aiohttp":
            while not pathlib.Path({signs!r}, "aiohttp").exists():
                time.sleep(0.005)


sys.meta_path.insert(0, Slow())
"""
COMPLETION = {"model": "m", "prompt": "a"}
KINDS: dict[str, tuple[str, str, Any]] = {
    "V2 infer": ("POST", "/v2/models/m/infer", {"inputs": [json_tensor("text_input", "BYTES", [1, 1], ["a"])]}),
    "V2 generate": ("POST", "/v2/models/m/generate", {"text_input": "a"}),
    "V2 generate_stream": ("POST", "/v2/models/m/generate_stream", {"text_input": "a"}),
    "V1 predict": ("POST", "/v1/models/m:predict", {"instances": [["a"]]}),
    "OpenAI completion": ("POST", "/v1/completions", COMPLETION),
    "OpenAI stream": ("POST", "/v1/completions", {**COMPLETION, "stream": True}),
    "server metadata": ("GET", "/v2", b""),
    "model metadata": ("GET", "/v2/models/m", b""),
    "model configuration": ("GET", "/v2/models/m/config", b""),
    "statistics": ("GET", "/v2/models/m/stats", b""),
    "V1 models": ("GET", "/v1/models", b""),
    "OpenAI models": ("GET", "/openai/v1/models", b""),
    "repository index": ("POST", "/v2/repository/index", {}),
    "status": ("GET", "/status", b""),
    "metrics": ("GET", "/metrics", b""),
}


def within_bound(first_s: float, second_s: float) -> bool:
    """The bar is max(3 × second, 20 ms) on a quiet machine; the tests run beside others, which take thrice as long."""
    return first_s <= 3 * max(3 * second_s, 0.020)


def timed(call: Callable[[], object]) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started


def test_no_first_request_waits_for_aiohttp(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(NO_AIOHTTP.format(signs=str(tmp_path)))
    write_python(tmp_path / "models", "m", MODEL)
    server = serve(tmp_path / "models", env={"PYTHONPATH": str(tmp_path / "site")})
    statuses = {kind: server.request(method, path, body).status for kind, (method, path, body) in KINDS.items()}
    assert statuses == dict.fromkeys(KINDS, 200)
    (tmp_path / "aiohttp").touch()
    assert server.get("/nowhere").status == 404  # aiohttp answers what has no route


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_request_of_a_kind_is_about_as_fast_as_the_second(tmp_path: Path, serve: Serve, kind: str) -> None:
    method, path, body = KINDS[kind]
    write_python(tmp_path, "m", MODEL)
    attempts = []
    for _ in range(ATTEMPTS):
        server = serve(tmp_path)
        attempts.append([timed(lambda: server.request(method, path, body)) for _ in range(2)])  # noqa: B023 - called here
        server.stop()
        if within_bound(*attempts[-1]):
            return
    pytest.fail(f"seconds of the first and the second request: {attempts}")


def infer_over_grpc(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"a"]], dtype=object))
    client.infer("m", [tensor])


@pytest.mark.parametrize(
    "call", [infer_over_grpc, lambda client: client.get_model_metadata("m")], ids=["infer", "metadata"]
)
def test_the_first_call_over_grpc_is_about_as_fast_as_the_second(
    tmp_path: Path, serve: Serve, call: Callable[[triton.InferenceServerClient], object]
) -> None:
    write_python(tmp_path, "m", MODEL)
    attempts = []
    for _ in range(ATTEMPTS):
        server = serve(tmp_path, "--grpc-port", "0")
        client = triton.InferenceServerClient(f"127.0.0.1:{server.wait_for_event('grpc.listening')['grpc_port']}")
        assert client.is_server_live()  # the connection is there
        attempts.append([timed(lambda: call(client)) for _ in range(2)])  # noqa: B023 - called here
        client.close()
        server.stop()
        if within_bound(*attempts[-1]):
            return
    pytest.fail(f"seconds of the first and the second call: {attempts}")
