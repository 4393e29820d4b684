"""lint on the command line: anybody's manifests, our services as what they become, and exit codes for scripts."""

import io
import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import ROOT, Call

DANGEROUS = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: slow, namespace: lab}
spec:
  scaleTargetRef: {name: slow}
  minReplicaCount: 0
  triggers:
    - type: prometheus
      metadata:
        serverAddress: http://prometheus:9090
        query: histogram_quantile(0.95, sum by (le) (rate(latency_seconds_bucket[2m])))
        threshold: "0.5"
"""


@pytest.fixture
def dangerous(tmp_path: Path) -> str:
    path = tmp_path / "scaledobject.yaml"
    path.write_text(DANGEROUS)
    return str(path)


def test_findings_are_data_with_their_place_and_errors_end_with_1(dangerous: str, call: Call) -> None:
    done = call("lint", "-f", dangerous)
    assert done.code == 1
    assert all(line.startswith(f"{dangerous}:") for line in done.out.splitlines())
    assert done.err.startswith("objects: 1, ")
    assert "error: " in done.err


def test_json_carries_rule_place_and_fix(dangerous: str, call: Call) -> None:
    found = json.loads(call("lint", "-f", dangerous, "-o", "json").out)
    assert {"rule", "severity", "object", "path", "file", "line", "column", "message", "fix"} == found[0].keys()
    assert {finding["file"] for finding in found} == {dangerous}


def test_fix_prints_what_to_write(dangerous: str, call: Call) -> None:
    lines = call("lint", "-f", dangerous, "--fix").out.splitlines()
    assert any(line.startswith("    ") for line in lines)
    assert len(lines) > len(call("lint", "-f", dangerous).out.splitlines())


def test_strict_ends_with_1_on_warnings(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    labels = re.compile(r"^ +pilotlight.dev/service: .*\n", re.MULTILINE)
    path.write_text(labels.sub("", call("render", "-f", "examples/services/llama-chat.yaml").out))
    found = json.loads(call("lint", "-f", str(path), "-o", "json").out)
    assert {finding["rule"] for finding in found} == {"PL430", "PL488"}, "of objects that we did not plan"
    assert call("lint", "-f", str(path)).code == 0
    assert call("lint", "-f", str(path), "--strict").code == 1


def test_a_service_is_judged_as_what_it_becomes(call: Call, tmp_path: Path) -> None:
    """Its model's size is known there, and how many pods share it, which the manifests alone do not tell."""
    path = tmp_path / "service.yaml"
    document = (ROOT / "examples/services/deepseek-multi-node.yaml").read_text()
    path.write_text(f"{document}    leader: {{runner: {{resources: {{requests: {{memory: 500Gi}}}}}}}}\n")
    (found,) = json.loads(call("lint", "-f", str(path), "-o", "json").out)
    assert (found["rule"], found["object"]) == ("PL483", "LeaderWorkerSet default/deepseek-chat-engine")
    assert found["message"] == "memory = 500Gi, must be twice the model's 319Gi: 637Gi"


def test_a_service_is_judged_with_the_runtimes_of_its_folder_or_of_a_catalogue(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, runtime = tmp_path / "service.yaml", tmp_path / "runtime.yaml"
    service.write_text(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: odd}\n"
        "spec: {predictor: {model: {modelFormat: {name: odd}, storageUri: s3://models/odd}}}\n"
    )
    runtime.write_text(
        "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: odd}\n"
        "spec: {supportedModelFormats: [{name: odd, autoSelect: true}], protocolVersions: [v1],"
        " containers: [{name: kserve-container, image: 'example/odd:1'}]}\n"
    )
    assert call("lint", "-f", str(service)).code == 2
    assert "objects: 5, " in call("lint", "-f", str(tmp_path)).err
    assert "objects: 4, " in call("lint", "-f", str(service), "--catalog", str(runtime)).err
    monkeypatch.setenv("PILOTLIGHT_CATALOG", str(runtime))
    assert "objects: 4, " in call("lint", "-f", str(service)).err
    monkeypatch.setenv("MODEL", "s3://models/odd")
    service.write_text(service.read_text().replace("s3://models/odd", '"${MODEL}"'))
    assert call("lint", "-f", str(service)).code == 2
    assert "objects: 4, " in call("lint", "-f", str(service), "--env").err


def test_services_among_other_peoples_objects_are_said_to_be_left_out(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "both.yaml"
    path.write_text((ROOT / "examples/services/iris.yaml").read_text() + "---" + DANGEROUS)
    done = call("lint", "-f", str(path))
    assert done.code == 1
    assert f"{path}: the InferenceServices in it are not linted" in done.err


def test_a_folder_without_objects_is_a_usage_error(call: Call, tmp_path: Path) -> None:
    assert call("lint", "-f", str(tmp_path)).code == 2


def test_standard_input_is_linted(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(DANGEROUS))
    assert call("lint", "-f", "-").code == 1


def test_unreadable_and_missing_files_end_with_2(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: [")
    assert call("lint", "-f", str(tmp_path / "bad.yaml")).code == 2
    assert call("lint", "-f", str(tmp_path / "none.yaml")).code == 2
