"""`platformctl profile` against real predictors: torch's table where torch runs, else the phases of the requests."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.cli.conftest import Call
from tests.onnx_models import write_identity, write_python
from tests.serving import RunningServer, json_tensor

Serve = Callable[..., RunningServer]
TORCH_MODEL = """
import torch

INPUTS = {"x": ("FP32", [2])}
OUTPUTS = {"y": ("FP32", [2])}


def predict(x):
    return {"y": torch.sigmoid(torch.from_numpy(x.copy())).numpy()}
"""
ONE = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}


class Asking(Thread):
    """Asks a model again and again until the block ends."""

    def __init__(self, server: RunningServer, model: str) -> None:
        super().__init__()
        self._server, self._model, self._answered, self._enough = server, model, Event(), Event()

    def run(self) -> None:
        while not self._enough.is_set():
            assert self._server.infer(self._model, ONE).status == 200
            self._answered.set()

    def __enter__(self) -> None:
        self.start()
        assert self._answered.wait(60)

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join()


@pytest.fixture
def plain(serve: Serve, tmp_path: Path) -> RunningServer:
    write_identity(tmp_path / "models", "same", "FP32")
    return serve(tmp_path / "models")


def test_a_service_without_torch_tells_the_phases_of_its_requests(call: Call, plain: RunningServer) -> None:
    with Asking(plain, "same"):
        done = call("profile", plain.url, "--seconds", "2", "-o", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["kind"], told["models"][0]["model"]) == ("phases", "same")
    assert told["models"][0]["requests"] > 0
    assert told["models"][0]["compute_infer_us"] > 0


def test_silence_is_said(call: Call, plain: RunningServer) -> None:
    done = call("profile", plain.url, "--seconds", "0.01")
    assert done.code == 0, done.err
    assert done.out.split()[:2] == ["MODEL", "VERSION"]
    assert "no requests within 0.01 s" in done.err


def test_a_service_with_torch_gives_the_table_of_its_profiler(call: Call, serve: Serve, tmp_path: Path) -> None:
    write_python(tmp_path / "models", "soft", TORCH_MODEL)
    server = serve(tmp_path / "models")
    with Asking(server, "soft"):
        done = call("profile", server.url, "--seconds", "2")
    assert done.code == 0, done.err
    assert "aten::sigmoid" in done.out


def test_a_token_is_asked_for_and_taken(call: Call, serve: Serve, tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "same", "FP32")
    (tmp_path / "token").write_text("let me in")
    server = serve(tmp_path / "models", "--admin-token-file", str(tmp_path / "token"))
    asked = ("profile", server.url, "--seconds", "0.01")
    done = call(*asked)
    assert (done.code, "--admin-token-file" in done.err) == (0, True)
    assert "--admin-token-file" not in call(*asked, "--token", "let me in").err
    done = call(*asked, "--token", "open sesame")
    assert (done.code, "--admin-token-file" in done.err) == (1, True)


def test_an_odd_length_of_time_is_refused(call: Call) -> None:
    done = call("profile", "http://127.0.0.1:1", "--seconds", "0")
    assert done.code == 2
    assert "--seconds is 0" in done.err
