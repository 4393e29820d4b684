"""A microservice that starts says 202, one that failed says of which kind; any other server says 503 and when."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.predictor.protocols.openai.conftest import LOOKS, LOOKS_CONFIG
from tests.serving import RunningServer

from pilotlight_predictor.frontends.http.startup_responses import boot_response, chat_error
from pilotlight_predictor.server.server_state import ServerState

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
SLOW = "import time\n\nwhile not __import__('pathlib').Path({!r}).exists():\n    time.sleep(0.01)\n"
SAYS = """
import numpy as np

INPUTS = {"messages": ("BYTES", [1])}
OUTPUTS = {"text_output": ("BYTES", [1])}


def predict(messages):
    return {"text_output": np.array([b"ready"], dtype=object)}
"""


@pytest.mark.parametrize(
    ("state", "surveyed", "empty", "status", "kind"),
    [
        (ServerState.INITIALIZING, False, False, 202, "initializing"),
        (ServerState.LOADING, True, False, 202, "model_loading"),
        (ServerState.FAILED, False, False, 503, "initialization_error"),
        (ServerState.FAILED, True, False, 503, "model_load_error"),
        (ServerState.READY, True, True, 400, "invalid_request_error"),
    ],
)
def test_what_a_microservice_answers_instead(
    state: ServerState, surveyed: bool, empty: bool, status: int, kind: str
) -> None:  # fmt: skip
    found = chat_error(state, "why", surveyed, empty)
    assert found is not None
    assert (found.status, found.kind) == (status, kind)


def test_a_server_that_is_ready_answers_itself() -> None:
    assert chat_error(ServerState.READY, "", True, False) is None


@pytest.mark.parametrize(("microservice", "status"), [(True, 202), (False, 503)])
def test_before_there_are_routes_a_chat_gets_openais_shape(microservice: bool, status: int) -> None:
    reply = boot_response(ServerState.INITIALIZING, "", "/v1/chat/completions", 10, microservice)
    assert reply is not None
    assert isinstance(reply.body, list)
    assert (reply.status, reply.headers) == (status, {"Retry-After": "1"})
    assert json.loads(bytes(reply.body[0]))["error"]["code"] == "model_not_ready"
    assert boot_response(ServerState.INITIALIZING, "", "/v2/health/ready", 0, microservice) is None


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A model that is loaded once a file `go` lies beside the repository."""
    (tmp_path / "repository" / "says" / "1").mkdir(parents=True)
    source = SLOW.format(str(tmp_path / "go")) + SAYS
    (tmp_path / "repository" / "says" / "1" / "model.py").write_text(source)
    return tmp_path


@pytest.mark.parametrize(("flags", "status"), [(("--microservice",), 202), ((), 503)])
def test_while_it_loads_and_after(
    slow: Path, serve: Callable[..., RunningServer], flags: tuple[str, ...], status: int
) -> None:  # fmt: skip
    server = serve(slow / "repository", *flags, ready=False)
    server.wait_until(lambda: server.get("/status").json()["state"] == "loading", "loading")
    answer = server.post("/v1/chat/completions", CHAT)
    assert (answer.status, answer.headers["retry-after"]) == (status, "1")
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert server.post("/v1/chat/completions", b"").status == 400
    (slow / "go").touch()
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready")
    assert server.post("/v1/chat/completions", CHAT).json()["choices"][0]["message"]["content"] == "ready"


def test_a_model_that_cannot_be_loaded_is_told_as_such(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.py").write_text("raise RuntimeError('no weights')\n")
    server = serve(tmp_path, "--microservice", ready=False)
    server.wait_until(lambda: server.get("/status").json()["state"] == "failed", "failed")
    answer = server.post("/v1/chat/completions", CHAT)
    assert answer.status == 503
    assert answer.json()["error"]["type"] == "model_load_error"
    assert "no weights" in answer.json()["error"]["message"]


def test_one_that_started_and_is_not_ready_says_so(tmp_path: Path, serve: Callable[..., RunningServer]) -> None:
    for name, source in (("says", SAYS), ("bad", "raise RuntimeError('no weights')\n")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(source)
    flags = ("--model-control-mode", "explicit", "--load-model", "says", "--strict-readiness")
    server = serve(tmp_path, "--microservice", *flags)
    assert server.post("/v1/chat/completions", CHAT).status == 200
    assert server.post("/v2/repository/models/bad/load").status == 400
    answer = server.post("/v1/chat/completions", CHAT)
    assert (answer.status, answer.json()["error"]["type"]) == (503, "model_not_ready")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("flags", [("--microservice",), ()])
def test_taos_modes_reach_the_model_of_a_microservice_and_no_other(
    tmp_path: Path, serve: Callable[..., RunningServer], flags: tuple[str, ...]
) -> None:  # fmt: skip
    (tmp_path / "looks" / "1").mkdir(parents=True)
    (tmp_path / "looks" / "1" / "model.py").write_text(LOOKS)
    (tmp_path / "looks" / "config.pbtxt").write_text(LOOKS_CONFIG)
    server = serve(tmp_path, "--warmup", "none", *flags)
    answer = server.post("/v1/chat/completions", {**CHAT, "conv_mode": "qwen", "mode": "auto", "max_tokens": 5})
    if not flags:
        assert (answer.status, answer.json()["error"]["param"]) == (400, "conv_mode")
        return
    told = json.loads(answer.json()["choices"][0]["message"]["content"])
    assert told["sampling"] == {"max_tokens": 5, "conv_mode": "qwen"}
    refused = server.post("/v1/chat/completions", {**CHAT, "mode": 3})
    assert (refused.status, refused.json()["error"]["message"]) == (400, "mode = 3, must be text")
