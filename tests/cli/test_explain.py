"""explain: decisions with their reasons, and why each runtime was taken or passed over."""

import json
from pathlib import Path

import yaml
from tests.cli.conftest import Call

IRIS = "examples/services/iris.yaml"


def test_decisions_are_data_in_every_format(call: Call) -> None:
    (service,) = json.loads(call("explain", "-f", IRIS, "-o", "json").out)["services"]
    topics = {decision["topic"]: decision for decision in service["decisions"]}
    assert topics["predictor: mode"]["value"] == "serverless"
    assert yaml.safe_load(call("explain", "-f", IRIS, "-o", "yaml").out)["services"] == [service]


def test_the_reason_follows_the_document(call: Call) -> None:
    done = call("explain", "-f", IRIS, "--set", 'metadata.annotations["serving.kserve.io/deploymentMode"]=Standard',
                "--set", "spec.predictor.minReplicas=1")  # fmt: skip
    assert "annotation serving.kserve.io/deploymentMode = Standard" in done.out


def test_every_runtime_is_listed_with_its_verdict(call: Call) -> None:
    lines = call("explain", "-f", IRIS, "--runtime").out.splitlines()
    assert lines[0] == "default/iris: pilotlight (serves onnx, priority 10)"
    verdicts = {line.split()[0]: line.split()[1] for line in lines[2:]}
    assert verdicts["pilotlight"] == "taken"
    assert verdicts["kserve-tritonserver"] == "fits"
    assert verdicts["kserve-sklearnserver"] == "no"


def test_runtimes_are_judged_for_the_target_that_is_named(call: Call) -> None:
    command = ("explain", "-f", "examples/services/flowers-sklearn.yaml", "--runtime")
    assert call(*command).out.startswith("default/flowers-sklearn: kserve-sklearnserver (")
    lines = call(*command, "--target", "local").out.splitlines()
    assert lines[0].startswith("default/flowers-sklearn: pilotlight (")
    (foreign,) = [line for line in lines[1:] if line.split()[0] == "kserve-sklearnserver"]
    assert foreign.endswith("local runs only the Pilotlight predictor image")


def test_runtimes_are_explained_when_none_fits(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(Path(IRIS).read_text().replace("name: onnx", "name: nonesuch"))
    assert call("explain", "-f", str(path)).code == 2
    done = call("explain", "-f", str(path), "--runtime", "-o", "json")
    assert done.code == 0
    (service,) = json.loads(done.out)["services"]
    assert service["runtime"] == ""
    assert "no runtime serves format nonesuch" in service["reason"]
    assert service["candidates"]
    assert not any(candidate["taken"] or candidate["fits"] for candidate in service["candidates"])
