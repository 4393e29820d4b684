"""Load, unload and index while the server runs: their parameters, and models that come within a request."""

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.onnx_models import write_identity, write_python
from tests.predictor.in_process_server import House, write_ensemble
from tests.serving import RunningServer, json_tensor

from pilotlight_predictor.frontends.http.messages import HttpRequest
from pilotlight_predictor.protocols.v2 import admin

GOOD = {"inputs": [json_tensor("x", "FP32", [2], [1, 2])]}
LOAD, UNLOAD = "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_identity(folder, "one", "FP32")
    write_identity(folder, "two", "FP32")
    write_python(folder, "broken", "this is no Python")
    return folder


@pytest.fixture(scope="module")
def explicit(repository: Path, serve_module: Callable[..., RunningServer]) -> RunningServer:
    return serve_module(repository, "--model-control-mode", "explicit", "--allow-inline-files")


def load(server: RunningServer, name: str, **parameters: Any) -> Any:
    return server.post(LOAD.format(name), {"parameters": parameters} if parameters else b"")


def state_of(server: RunningServer, name: str) -> tuple[str, str]:
    (row,) = [row for row in server.post("/v2/repository/index").json() if row["name"] == name]
    return row["state"], row["reason"]


def test_a_model_comes_and_goes(explicit: RunningServer) -> None:
    assert explicit.infer("one", GOOD).status == 404
    assert explicit.get("/v2/models/one/ready").status == 503
    answer = load(explicit, "one")
    assert (answer.status, answer.body) == (200, b"")
    assert explicit.infer("one", GOOD).status == 200
    assert state_of(explicit, "one") == ("READY", "")
    assert [row["name"] for row in explicit.post("/v2/repository/index", {"ready": True}).json()] == ["one"]
    assert explicit.post(UNLOAD.format("one"), {"parameters": {"unload_dependents": True}}).status == 200
    explicit.wait_until(lambda: state_of(explicit, "one") == ("UNAVAILABLE", "unloaded"), "rid of the model")
    assert explicit.infer("one", GOOD).status == 404
    gone = explicit.infer("one/versions/1", GOOD)
    assert (gone.status, "version 1 is not found: unloaded" in gone.error) == (404, True)


def test_a_load_may_bring_its_own_configuration(explicit: RunningServer) -> None:
    config = {
        "max_batch_size": 0,
        "version_policy": {"latest": {"num_versions": 1}},
        "parameters": {"k": {"string_value": "v"}},
    }
    for given in (json.dumps(config), config):
        assert load(explicit, "two", config=given).status == 200
        assert explicit.get("/v2/models/two/config").json()["parameters"] == {"k": {"string_value": "v"}}
    assert explicit.post(UNLOAD.format("two")).status == 200


def test_a_load_that_fails_says_so_and_why(explicit: RunningServer) -> None:
    answer = load(explicit, "broken")
    assert answer.status == 400
    assert "failed to load 'broken'" in answer.error
    assert state_of(explicit, "broken")[0] == "UNAVAILABLE"
    answer = load(explicit, "nowhere")
    assert (answer.status, "failed to load 'nowhere'" in answer.error) == (404, True)


def test_a_failed_reload_keeps_what_served(explicit: RunningServer) -> None:
    assert load(explicit, "one").status == 200
    answer = load(explicit, "one", config=json.dumps({"backend": "nope"}))
    assert (answer.status, "failed to load 'one'" in answer.error) == (400, True)
    assert explicit.infer("one", GOOD).status == 200


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (LOAD, b"{", "not valid JSON"),
        (LOAD, [], "must be a JSON object"),
        (LOAD, {"parameters": 1}, "parameters must be a JSON object"),
        (LOAD, {"parameters": {"config": "{"}}, "parameters.config"),
        (LOAD, {"parameters": {"config": 5}}, "parameters.config"),
        (LOAD, {"parameters": {"config": "[]"}}, "parameters.config must be a JSON object"),
        (LOAD, {"parameters": {"config": {"name": "other"}}}, "must be 'one'"),
        (LOAD, {"parameters": {"config": {"max_batch_size": -1}}}, "max_batch_size"),
        (LOAD, {"parameters": {"config": {"unheard_of": 1}}}, "unheard_of"),
        (LOAD, {"parameters": {"file:1/model.onnx": "AA=="}}, "parameters.config is required"),
        (LOAD, {"parameters": {"config": "{}", "file:1/model.onnx": "?"}}, "must be base64"),
        (LOAD, {"parameters": {"config": "{}", "file:1/model.onnx": 7}}, "must be base64"),
        (LOAD, {"parameters": {"config": "{}", "file:../../x": "AA=="}}, "inside the model"),
        (LOAD, {"parameters": {"config": "{}", "file:/etc/x": "AA=="}}, "inside the model"),
        (LOAD, {"parameters": {"config": "{}", "file:": "AA=="}}, "inside the model"),
        (LOAD, {"parameters": {"config": "{}", "file:1/" + "a" * 300: "AA=="}}, "cannot be written"),
        (LOAD, {"parameters": {"config": "{}", "file:1/a": "AA==", "file:1/a/b": "AA=="}}, "cannot be written"),
        (LOAD, {"parameters": {"config": "{}", "file:1/": "AA=="}}, "failed to load"),
        (UNLOAD, {"parameters": {"unload_dependents": "yes"}}, "unload_dependents = 'yes'"),
        (UNLOAD, "text", "must be a JSON object"),
        ("/v2/repository/index", {"ready": 1}, "ready = 1"),
        ("/v2/repository/index", b"[" * 250_000, "not valid JSON"),
    ],
)
def test_a_bad_call_names_its_field(explicit: RunningServer, path: str, body: Any, words: str) -> None:
    answer = explicit.post(path.format("one"), body)
    assert answer.status == 400
    assert words in answer.error


@pytest.mark.parametrize(
    "path",
    ["/v2/repository/index", UNLOAD, "/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/region/r/register"],
)
def test_a_body_of_more_than_a_mebibyte_is_not_decoded(explicit: RunningServer, path: str) -> None:
    answer = explicit.post(path.format("one"), b'{"x":"' + bytes(admin.MAX_BYTES))
    assert answer.status == 413
    assert f"the limit of {path.format('one')} is {admin.MAX_BYTES}" in answer.error


@pytest.mark.parametrize("size", [1 << 19, 3 << 20], ids=["thread", "process"])
def test_a_large_load_is_decoded_off_the_event_loop(explicit: RunningServer, repository: Path, size: int) -> None:
    content = base64.b64encode((repository / "one" / "1" / "model.onnx").read_bytes()).decode()
    parameters = {"config": json.dumps({"backend": "onnxruntime", "max_batch_size": 0}), "file:1/model.onnx": content}
    assert load(explicit, "large", **parameters, **{"file:1/notes": "A" * size}).status == 200
    assert explicit.infer("large", GOOD).status == 200
    wrong = load(explicit, "large", **parameters, **{"file:1/notes": "?" * size})
    assert (wrong.status, "must be base64" in wrong.error) == (400, True)
    long = load(explicit, "large", config="{" + " " * (1 << 20))
    assert (long.status, "parameters.config has 1048577 characters" in long.error) == (400, True)
    assert explicit.post(UNLOAD.format("large")).status == 200


def test_a_model_may_come_within_the_request(explicit: RunningServer, repository: Path) -> None:
    content = base64.b64encode((repository / "one" / "1" / "model.onnx").read_bytes()).decode()
    parameters = {"config": json.dumps({"backend": "onnxruntime", "max_batch_size": 0}), "file:3/model.onnx": content}
    assert load(explicit, "sent", **parameters).status == 200
    assert explicit.infer("sent", GOOD).json()["model_version"] == "3"
    assert explicit.post(UNLOAD.format("sent")).status == 200


def test_an_ensemble_without_its_model_says_which_one_is_missing(explicit: RunningServer, repository: Path) -> None:
    write_ensemble(repository, "ensemble", "two")
    assert load(explicit, "ensemble").status == 200
    assert explicit.get("/v2/models/ensemble/ready").status == 200
    assert explicit.post(UNLOAD.format("two")).status == 200
    answer = explicit.get("/v2/models/ensemble/ready")
    assert (answer.status, "its model 'two' is not ready" in answer.json()["reason"]) == (503, True)
    assert explicit.post(UNLOAD.format("ensemble")).status == 200


@pytest.mark.parametrize(("dependents", "left"), [(True, 404), (False, 200)])
def test_an_ensemble_takes_its_models_with_it_when_asked(
    explicit: RunningServer, repository: Path, dependents: bool, left: int
) -> None:
    write_ensemble(repository, "ensemble_of_two", "two")
    assert load(explicit, "ensemble_of_two").status == 200
    assert explicit.infer("two", GOOD).status == 200
    answer = explicit.post(UNLOAD.format("ensemble_of_two"), {"parameters": {"unload_dependents": dependents}})
    assert (answer.status, explicit.infer("two", GOOD).status) == (200, left)


def test_a_disk_that_fails_is_not_called_the_clients_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh() -> None:
        raise OSError(5, "Input/output error")

    house = House(tmp_path, mode="explicit")
    monkeypatch.setattr(house.control._sources, "refresh", refresh)
    call = HttpRequest("POST", LOAD.format("one"), "", {}, b"", "", lambda reply: None, 0.0)
    call.params = {"model": "one"}
    with pytest.raises(OSError, match="Input/output error"):
        asyncio.run(admin.load(house.server, call))


def test_an_unknown_model_cannot_be_unloaded(explicit: RunningServer) -> None:
    answer = explicit.post(UNLOAD.format("nowhere"))
    assert (answer.status, "failed to unload 'nowhere'" in answer.error) == (404, True)
