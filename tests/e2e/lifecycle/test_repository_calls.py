"""Models that come and go while the server runs: by call, by poll, and by the old flags."""

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.e2e.lifecycle.models import HELD, body, write_signed
from tests.eventually import eventually
from tests.serving import RunningServer, read_answer, rendered

Serve = Callable[..., RunningServer]
EXPLICIT = ("--model-control-mode", "explicit")


def call(server: RunningServer, model: str, verb: str, **parameters: object) -> tuple[int, str]:
    answer = server.post(f"/v2/repository/models/{model}/{verb}", {"parameters": parameters})
    return answer.status, answer.body.decode()


def asked(server: RunningServer, model: str = "m", path: str = "") -> float | int:
    answer = server.post(f"/v2/models/{model}{path}/infer", body(1))
    return float(answer.json()["outputs"][0]["data"][0]) if answer.status == 200 else answer.status


def test_load_infer_unload_and_what_is_in_flight_is_answered(tmp_path: Path, serve: Serve) -> None:
    server = serve(write_signed(tmp_path, HELD), *EXPLICIT)
    assert asked(server) == 404
    assert call(server, "m", "load") == (200, "")
    connection = server.connect(60)
    connection.sendall(rendered("POST", "/v2/models/m/infer", body(1), None, server.address))
    eventually((tmp_path / "began 1").exists, "the request to run")
    assert call(server, "m", "unload") == (200, "")
    assert asked(server) == 404
    assert server.post("/v2/repository/index").json()[0]["state"] == "UNLOADING"
    (tmp_path / "go").touch()
    assert read_answer(connection).json()["outputs"][0]["data"] == [2]
    connection.close()
    server.wait_until(lambda: server.post("/v2/repository/index").json()[0]["state"] == "UNAVAILABLE", "unloaded")
    assert call(server, "m", "load") == (200, "")
    assert asked(server) == 2


def test_a_load_that_fails_says_why_and_what_served_before_goes_on(tmp_path: Path, serve: Serve) -> None:
    repository = write_signed(tmp_path, HELD)
    (tmp_path / "go").touch()
    server = serve(repository, *EXPLICIT, "--load-model", "m")
    (repository / "m/1/model.py").write_text("no python")
    status, text = call(server, "m", "load")
    assert status == 400
    assert "failed to load 'm'" in text
    assert asked(server) == 2
    row = server.post("/v2/repository/index").json()[0]
    assert row["state"] == "READY"
    assert "the last reload failed" in row["reason"]


def test_files_within_a_call_are_refused_unless_allowed(tmp_path: Path, serve: Serve) -> None:
    repository = write_signed(tmp_path, HELD)
    (tmp_path / "go").touch()
    source = HELD.format(signs=str(tmp_path)).replace("* 2", "* 9").encode()
    files = {"file:1/model.py": base64.b64encode(source).decode(), "config": json.dumps({"backend": "python"})}
    refusing = serve(repository, *EXPLICIT)
    assert call(refusing, "inline", "load", **files)[0] == 403
    assert asked(refusing, "inline") == 404
    allowing = serve(repository, *EXPLICIT, "--allow-inline-files")
    assert call(allowing, "inline", "load", **files) == (200, "")
    assert asked(allowing, "inline") == 9


def test_a_start_without_models_heals_when_the_poll_finds_one(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "go").touch()
    poll = ("--model-control-mode", "poll", "--repository-poll-secs", "0.05")
    server = serve(tmp_path / "models", *poll, ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").json()["state"] == "failed", "failed")
    assert server.get("/v2/health/ready").json()["reason"] == "no model found"
    write_signed(tmp_path, HELD)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "healed")
    assert asked(server) == 2
    shutil.rmtree(tmp_path / "models/m")
    server.wait_until(lambda: asked(server) == 404, "without it")


def test_a_model_store_keeps_its_models_and_follows_their_versions(tmp_path: Path, serve: Serve) -> None:
    repository = write_signed(tmp_path, HELD)
    (tmp_path / "go").touch()
    server = serve(None, "--model-store", str(repository), "--repository-poll-secs", "0.05")
    assert asked(server) == 2
    shutil.copytree(repository / "m", repository / "new")
    (repository / "m/2").mkdir()
    (repository / "m/2/model.py").write_text(HELD.format(signs=str(tmp_path)).replace("* 2", "* 3"))
    server.wait_until(lambda: asked(server) == 3, "following the version")
    assert asked(server, "new") == 404


def test_one_file_is_served_without_any_configuration_as_the_version_asked_for(tmp_path: Path, serve: Serve) -> None:
    repository = write_signed(tmp_path, HELD)
    (tmp_path / "go").touch()
    path = str(repository / "m/1/model.py")
    server = serve(None, "--model-path", path, "--model-name", "mine", "--model-version", "7")
    assert asked(server, "mine", "/versions/7") == 2
    assert asked(server, "mine", "/versions/1") == 404
    assert server.get("/v2/models/mine").json()["versions"] == ["7"]
