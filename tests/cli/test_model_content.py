"""A revision is its content, on a real platform: the D1 story of editing a model at the same path."""

import json
import os
import pickle
import shlex
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.embedded import Platform
from tests.eventually import eventually
from tests.onnx_models import write_model as write_onnx

DOCUMENT = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: sum
  annotations: {autoscaling.knative.dev/window: 60s}
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 3
    model:
      modelFormat: {name: python}
      protocolVersion: v2
      storageUri: ./model
"""
MODEL = """
INPUTS = {"x": ("FP64", [-1, -1])}
OUTPUTS = {"y": ("FP64", [-1])}


def predict(x):
    return x.sum(axis=1) * FACTOR
"""
ENSEMBLE = """
platform: "ensemble"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "z" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "double" input_map { key: "x" value: "x" } output_map { key: "y" value: "twice" } },
  { model_name: "double" input_map { key: "x" value: "twice" } output_map { key: "y" value: "z" } }
] }
"""
ROW = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP64", "data": [1, 2, 3, 4]}]})


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with Platform(tmp_path / "home") as running:
        monkeypatch.setenv("PILOTLIGHT_HOME", str(running.home.root))
        yield running


@pytest.fixture
def document(tmp_path: Path) -> Path:
    written = tmp_path / "sum.yaml"
    written.write_text(DOCUMENT)
    (tmp_path / "model").mkdir()
    write_model(written, 1)
    return written


def write_model(document: Path, factor: int) -> None:
    (document.parent / "model" / "model.py").write_text(MODEL.replace("FACTOR", str(factor)))


def answer(call: Call, name: str = "sum") -> float:
    done = call("infer", name, "--data", ROW, "-o", "json")
    assert done.code == 0, done.err
    return float(json.loads(done.out)["outputs"][0]["data"][0])


def revision(call: Call) -> dict[str, object]:
    (serving,) = [each for each in json.loads(call("status", "sum", "-o", "json").out)["revisions"] if each["percent"]]
    return serving


def test_an_edited_model_is_a_new_revision_and_the_old_one_keeps_its_bytes(
    call: Call, platform: Platform, document: Path
) -> None:
    assert call("deploy", "-f", str(document)).code == 0
    first = revision(call)
    assert answer(call) == 10
    assert call("diff", "-f", str(document)).code == 0
    assert "unchanged" in call("deploy", "-f", str(document)).err

    write_model(document, 100)
    compared = call("diff", "-f", str(document), "-o", "json")
    assert compared.code == 1
    assert [files for change in json.loads(compared.out) for files in change.get("models", {}).values()] == [
        ["~ model.py"]
    ]
    assert "~ model.py" in json.loads(compared.out)[0]["fields"][0]["new"]
    # New replicas of the old revision serve what it was deployed with.
    assert call("scale", "sum", "--to", "2", "--timeout", "20").code == 0
    assert {answer(call) for _ in range(6)} == {10}

    assert call("deploy", "-f", str(document), "--reset").code == 0
    second = revision(call)
    assert second["name"] != first["name"]
    assert second["model_digest"] != first["model_digest"]
    assert answer(call) == 1000
    assert call("rollback", "sum").code == 0
    assert revision(call)["name"] == first["name"]
    assert answer(call) == 10
    assert str(first["model_digest"])[:19] in call("status", "sum", "-o", "wide").out
    assert "2 snapshots" in call("doctor").out


def test_the_bytes_of_a_revision_outlive_the_control_process_and_the_original(
    call: Call, platform: Platform, document: Path
) -> None:
    assert call("deploy", "-f", str(document)).code == 0
    os.unlink(document.parent / "model" / "model.py")
    (replica,) = platform.replicas()
    os.kill(replica, 9)
    eventually(lambda: call("infer", "sum", "--data", ROW).code == 0, "the replacement to answer")
    assert answer(call) == 10


def test_an_ensemble_is_served_from_its_snapshot_with_its_empty_version_folder(
    call: Call, platform: Platform, tmp_path: Path
) -> None:
    tensor = ("FP32", [1])
    write_onnx(tmp_path / "models", "double", [("Add", ["x", "x"], ["y"])], {"x": tensor}, {"y": tensor})
    (tmp_path / "models" / "four" / "1").mkdir(parents=True)
    (tmp_path / "models" / "four" / "config.pbtxt").write_text(ENSEMBLE)
    deployed = call("deploy", str(tmp_path / "models"), "--name", "shop")
    assert deployed.code == 0, deployed.err
    shutil.rmtree(tmp_path / "models")
    row = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [2.5]}]}
    reply = platform.ask("/shop/v2/models/four/infer", row)
    assert reply.status == 200, reply.body
    assert reply.json()["outputs"][0]["data"] == [10.0]


def test_an_edited_model_can_be_tried_by_a_canary(call: Call, platform: Platform, document: Path) -> None:
    assert call("deploy", "-f", str(document)).code == 0
    write_model(document, 100)
    assert call("canary", "start", "-f", str(document), "--percent", "50").code == 0
    # By plain requests: `infer` reads the metadata first, and the split counts both.
    request = urllib.request.Request(f"http://127.0.0.1:{platform.gateway_port}/sum/v2/models/sum/infer", ROW.encode())
    replies = [json.load(urllib.request.urlopen(request, timeout=10)) for _ in range(10)]
    assert {reply["outputs"][0]["data"][0] for reply in replies} == {10, 1000}
    assert call("canary", "abort", "sum").code == 0
    assert {answer(call) for _ in range(6)} == {10}


def test_without_a_snapshot_changed_bytes_are_refused_until_they_are_deployed(
    call: Call, platform: Platform, document: Path
) -> None:
    assert call("deploy", "-f", str(document), "--no-snapshot").code == 0
    assert not list((platform.home.root / "models").glob("*/content"))
    assert answer(call) == 10
    write_model(document, 100)
    (replica,) = platform.replicas()
    os.kill(replica, 9)
    reason = eventually(lambda: str(revision(call)["reason"]), "the reason")
    assert "ModelChanged" in reason
    assert "model.py" in reason
    assert "deploy it again" in reason
    assert call("deploy", "-f", str(document), "--no-snapshot").code == 0
    assert answer(call) == 1000
    # The old bytes again, in another inode: the revision of the same name starts at once when it is deployed.
    write_model(document, 1)
    assert call("deploy", "-f", str(document), "--no-snapshot").code == 0
    assert answer(call) == 10


def test_a_document_that_is_stored_keeps_its_content_and_says_so(
    call: Call, platform: Platform, document: Path
) -> None:
    planned = call("deploy", "-f", str(document), "--dry-run").out.split()[-1]
    assert call("deploy", "-f", str(document)).code == 0
    assert revision(call)["name"] == planned
    write_model(document, 100)
    again = call("deploy", "sum")
    assert again.code == 0
    assert "has changed since it was deployed" in again.err
    assert answer(call) == 10
    write_model(document, 1)
    shutil.rmtree(platform.home.models)
    assert call("deploy", "sum").code == 0  # takes the snapshot again
    assert call("scale", "sum", "--to", "2", "--timeout", "20").code == 0


def test_the_command_that_deploys_a_changed_model_again_is_named(
    call: Call, platform: Platform, document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(document.parent)
    (document.parent / "model" / "labels.pkl").write_bytes(pickle.dumps(["setosa"]))
    assert call("deploy", "./model:predict", "--name", "sum", "--namespace", "team", "--trust-pickle").code == 0
    write_model(document, 100)
    command = "./model:predict --name sum --namespace team --trust-pickle --set spec.predictor.maxReplicas=2"
    planned = call("deploy", "team/sum", "--set", "spec.predictor.maxReplicas=2", "--dry-run")
    assert f"deploy the new: platformctl deploy {command}; or, if it has a manifest," in planned.err
    again = call("deploy", "team/sum", "--set", "spec.predictor.maxReplicas=2")
    assert again.code == 0, again.err
    assert f"deploy the new: platformctl deploy {command}; or, if it has a manifest," in again.err
    assert call("deploy", *shlex.split(command)).code == 0
    assert answer(call, "team/sum") == 1000
    assert "has changed" not in call("deploy", "team/sum").err


def test_a_backup_brings_models_back_into_another_home(
    call: Call, platform: Platform, document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("deploy", "-f", str(document)).code == 0
    for factor in (50, 100):
        write_model(document, factor)
        assert call("deploy", "-f", str(document)).code == 0
    assert call("backup", str(tmp_path / "backup")).code == 0
    monkeypatch.setenv("PILOTLIGHT_HOME", str(tmp_path / "other"))
    restored = call("restore", str(tmp_path / "backup"), "-o", "json")
    assert restored.code == 0, restored.err
    assert json.loads(restored.out)["lost"] == [str(tmp_path / "model")]  # of two releases, whose bytes are gone
    assert restored.err.count("deploy it again (needed by default/sum generation 1, 2)") == 1, restored.err
    (kept,) = (tmp_path / "other" / "models").glob("*/content/model/model.py")
    assert "100" in kept.read_text()


def test_a_repository_that_is_polled_is_not_pinned(call: Call, platform: Platform, document: Path) -> None:
    polled = DOCUMENT.replace(
        "      storageUri:", "      env: [{name: INFERENCE_MODEL_CONTROL_MODE, value: poll}]\n      storageUri:"
    )
    document.write_text(polled)
    done = call("deploy", "-f", str(document), "--dry-run")
    assert done.code == 0, done.err
    planned = done.out
    write_model(document, 100)
    assert call("deploy", "-f", str(document), "--dry-run").out == planned


def test_a_missing_model_is_one_sentence(call: Call, document: Path, tmp_path: Path) -> None:
    document.write_text(DOCUMENT.replace("./model", "./nowhere"))
    done = call("deploy", "-f", str(document), "--dry-run")
    assert done.code != 0
    assert "nowhere does not exist or is empty" in done.err


SCORER = """
import json
from pathlib import Path

class Scorer:
    def __init__(self):
        self.weights = json.loads((Path(__file__).parent / NAME).read_text())

    def predict(self, x):
        return x @ self.weights
"""


def test_a_class_in_a_file_is_deployed_with_the_data_that_its_code_names(
    call: Call, platform: Platform, tmp_path: Path
) -> None:
    folder = tmp_path / "credit"
    (folder / "data").mkdir(parents=True)
    (folder / "weights.json").write_text("[1, 2, 3, 4]")
    (folder / "data" / "weights.json").write_text("[2, 2, 2, 2]")
    (folder / "scorer.py").write_text(SCORER.replace("NAME", '"weights.json"'))
    deployed = call("deploy", f"{folder}/scorer.py:Scorer")
    assert deployed.code == 0, deployed.err
    assert answer(call, "scorer") == 30
    (folder / "weights.json").write_text("[1, 1, 1, 1]")
    assert call("deploy", f"{folder}/scorer.py:Scorer").code == 0
    assert answer(call, "scorer") == 10

    (folder / "scorer.py").write_text(SCORER.replace("NAME", '"data" / Path("weights").with_suffix(".json")'))
    failed = call("deploy", f"{folder}/scorer.py:Scorer")
    assert failed.code == 1
    (line,) = [line for line in failed.err.splitlines() if "does not start" in line]
    assert "data/weights.json was not deployed with scorer.py, since no string of its code is this path" in line
    assert line.endswith(f"deploy the folder: platformctl deploy {folder}:Scorer")
    assert "INFO" not in failed.err  # the log that repeats the reason
    whole = call("deploy", f"{folder}:Scorer")
    assert whole.code == 0, whole.err
    assert answer(call, "scorer") == 20
