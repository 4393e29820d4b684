"""One-time jobs over REST: a folder of pictures through a real classifier, scored, followed and cancelled."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.onnx_models import write_model, write_python
from tests.platform.microservices.api.conftest import ORG, Api
from tests.platform.microservices.batch.conftest import COLOURS, DECLARED, GATED, picture

EXPERIMENTS = f"/orgs/{ORG}/experiments"
NODES = [("GlobalAveragePool", ["x"], ["mean"]), ("Flatten", ["mean"], ["flat"]), ("Softmax", ["flat"], ["y"])]


@pytest.fixture
def folder(api: Api, tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def begun(
    api: Api, folder: Path, network_arch: str, artifact: str, *, by_operator: bool = False, **body: Any
) -> tuple[str, dict[str, Any]]:
    """Where the job is, and what was told of it at first."""
    workspace = api.ok("POST", f"/orgs/{ORG}/workspaces", {"uri": str(folder)}, token=api.admin)["id"]
    experiment = api.ok("POST", EXPERIMENTS, {"network_arch": network_arch, "workspace": workspace})["id"]
    registrar = api.admin if by_operator else api.token
    parent = api.ok("POST", f"{EXPERIMENTS}/{experiment}/jobs", {"artifact": artifact}, token=registrar)["id"]
    asked = {"parent_id": parent, "inputs": "in", "outputs": "out", **body}
    told = api.ok("POST", f"{EXPERIMENTS}/{experiment}/batch_inference/start", asked)
    return f"{EXPERIMENTS}/{experiment}/jobs/{told['job_id']}", told


def test_a_folder_is_run_scored_and_its_progress_told(api: Api, folder: Path) -> None:
    write_model(folder, "model", NODES, {"x": ("FP32", ("n", 3, "h", "w"))}, {"y": ("FP32", ("n", 3))})
    (folder / "model" / "parameters.yaml").write_text(DECLARED)
    for colour in COLOURS:
        (folder / "in" / f"{colour}.png").write_bytes(picture(colour))
    (folder / "labels.json").write_text(json.dumps({f"{colour}.png": colour for colour in COLOURS}))
    at, told = begun(api, folder, "classification", "model", labels="labels.json")
    assert told["status"] == "pending"

    def ended() -> bool:
        return api.ok("GET", f"{at}/batch_inference/status")["status"] in ("done", "failed", "canceled")

    api.wait(ended, "the job to end")
    told = api.ok("GET", f"{at}/batch_inference/status")
    assert (told["status"], told["total"], told["done"], told["failed"]) == ("done", 3, 3, 0), told
    assert told["progress_percent"] == 100.0
    assert told["metrics"]["accuracy"] == 1.0
    assert (folder / "out" / "results.jsonl").exists()
    assert api.ok("GET", at)["status"] == "done"
    assert api.ask("GET", f"{at}/inference_microservice/status").status == 404  # it is no microservice


def test_a_job_is_cancelled_and_gone_on_with(api: Api, folder: Path) -> None:
    write_python(folder, "model", GATED.replace("{folder}", str(folder)))
    for number in range(5):
        body = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [number]}]}
        (folder / "in" / f"{number}.json").write_text(json.dumps(body))
    at, _ = begun(api, folder, "pilotlight", "model", by_operator=True)  # it has code
    api.wait((folder / "asked").exists, "the model to be asked")
    api.ok("POST", f"{at}/batch_inference/cancel")
    (folder / "open").touch()
    status = f"{at}/batch_inference/status"
    api.wait(lambda: api.ok("GET", status)["status"] == "canceled", "the job to be cancelled")
    assert api.ok("GET", status)["done"] < 5
    assert api.ok("GET", at)["status"] == "canceled"
    api.ok("POST", f"{at}/batch_inference/resume")
    api.wait(lambda: api.ok("GET", status)["status"] == "done", "the rest to be done")
    assert api.ok("GET", status)["done"] == 5


def test_what_cannot_be_run_is_refused_with_its_field(api: Api, folder: Path, iris: tuple[str, str]) -> None:
    experiment, parent = iris
    start = f"{EXPERIMENTS}/{experiment}/batch_inference/start"
    asked = {"parent_id": parent, "inputs": "in", "outputs": "out"}
    assert "has no workspace" in api.ask("POST", start, asked).json()["error"]
    assert api.ask("POST", start, {**asked, "parent_id": "nobody"}).status == 404
    assert api.ask("POST", start, {"parent_id": parent}).status == 400
    assert api.ask("GET", f"{EXPERIMENTS}/{experiment}/jobs/{parent}/batch_inference/status").status == 404
