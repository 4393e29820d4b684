"""explain: decisions with their reasons, and why each runtime was taken or passed over."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import Call

from pilotlight.spec.problems import code_texts

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
    assert "GPU" not in done.out, "it needs none"


def test_a_local_model_is_explained_as_deploy_would_serve_it(call: Call, tmp_path: Path) -> None:
    shutil.copy("examples/iris/model.onnx", tmp_path)
    file = tmp_path / "service.yaml"
    file.write_text(re.sub(r"storageUri: .*", "storageUri: ./model.onnx", Path(IRIS).read_text()))
    (service,) = json.loads(call("explain", "-f", str(file), "-o", "json").out)["services"]
    decided = {each["topic"].removeprefix("predictor: "): each for each in service["decisions"]}
    assert call("deploy", "-f", str(file), "--dry-run").out == f"default/iris {decided['revision']['value']}\n"
    assert decided["storage"]["reason"] == "deploy copies it for the revision; --no-snapshot serves it in place"
    assert decided["autoscaler"]["reason"] == "serverless is scaled by the platform"


def test_every_runtime_is_listed_with_its_verdict(call: Call) -> None:
    lines = call("explain", "-f", IRIS, "--runtime", "--target", "cluster").out.splitlines()
    assert lines[0] == "default/iris: pilotlight (serves onnx, priority 10)"
    verdicts = {line.split()[0]: line.split()[1] for line in lines[2:]}
    assert verdicts["pilotlight"] == "taken"
    assert verdicts["kserve-tritonserver"] == "fits"
    assert verdicts["kserve-sklearnserver"] == "no"


def test_runtimes_are_judged_for_the_target_that_is_named(call: Call) -> None:
    command = ("explain", "-f", "examples/services/flowers-sklearn.yaml", "--runtime")
    assert call(*command, "--target", "cluster").out.startswith("default/flowers-sklearn: kserve-sklearnserver (")
    path = "spec.predictor.model.storageUri=/models/flowers.joblib"
    refused = call(*command[:-1], "--set", path, "--target", "cluster").err
    assert "; use a URI, pvc:// or oci://, --target local, or spec.predictor.model.runtime: pilotlight" in refused
    lines = call(*command).out.splitlines()  # as deploy would
    assert lines[0].startswith("default/flowers-sklearn: pilotlight (")
    (foreign,) = [line for line in lines[1:] if line.split()[0] == "kserve-sklearnserver"]
    assert foreign.endswith("local runs only the Pilotlight predictor image")


def test_a_code_is_explained_without_a_document(call: Call) -> None:
    done = call("explain", "pl342", "PL400")
    assert done.code == 0, done.err
    first, fix, page, _, second, *_ = done.out.splitlines()
    assert first == f"PL342: {code_texts()['PL342'].what}"
    assert fix.startswith("  fix: Use a URI")
    assert page == "  see docs/reference/errors.md"
    assert second.startswith("PL400: unknown key in a trigger's metadata (error). KEDA ignores")
    entry = json.loads(call("explain", "PL400", "-o", "json").out)["codes"][0]
    assert entry["page"] == "docs/reference/lint.md"
    assert "activationThreshold" in entry["fix"]


def test_an_unknown_code_suggests_similar_ones(call: Call) -> None:
    done = call("explain", "PL349")
    assert done.code == 3
    assert "there is no error code PL349" in done.err
    assert "similar codes: PL348, PL350, PL347" in done.err
    assert call("explain", "PL999").err.endswith(
        "there is no error code PL999\n  docs/reference/errors.md lists them\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "neither -f FILE nor an error code is given"),
        (("wine",), "platformctl status wine"),
        (("KEDA001",), "KEDA001 is not an error code: those begin with PL"),
        ((IRIS,), f"platformctl explain -f {IRIS}"),
    ],
)
def test_what_is_no_code_is_a_usage_error_with_what_to_type(call: Call, words: tuple[str, ...], said: str) -> None:
    done = call("explain", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


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
