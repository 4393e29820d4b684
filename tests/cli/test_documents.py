"""Verbs that read documents: which are read, how they are changed, and how everything wrong is told."""

import io
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import Call

IRIS = "examples/services/iris.yaml"
SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: %s}
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: onnx}
      protocolVersion: v2
      storageUri: "%s"
"""
RUNTIME = """
apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: mine}
spec:
  supportedModelFormats: [{name: onnx, autoSelect: true, priority: 99}]
  protocolVersions: [v1, v2]
  containers: [{name: kserve-container, image: "example.com/mine:1"}]
"""
READING = ("validate", "render", "values", "explain")


def wrong(folder: Path) -> Path:
    path = folder / "service.yaml"
    path.write_text(
        (SERVICE % ("iris", "s3://m/iris")).replace("minReplicas: 1", "minReplica: 1\n    maxReplicas: three")
    )
    return path


@pytest.mark.parametrize("verb", READING)
def test_every_problem_is_told_at_once_with_its_place_on_stderr_alone(verb: str, call: Call, tmp_path: Path) -> None:
    path = wrong(tmp_path)
    done = call(verb, "-f", str(path))
    assert done.code == 2
    assert done.out == ""
    first, second, last = done.err.splitlines()
    assert first.startswith(f"{path}:7:5: error PL101: spec.predictor.minReplica: ")
    assert "did you mean minReplicas?" in first
    assert second.startswith(f"{path}:8:18: error PL102: spec.predictor.maxReplicas: ")
    assert last == "error: 2 errors; nothing was done"


def test_validate_gives_problems_as_data_where_json_is_asked_for(call: Call, tmp_path: Path) -> None:
    done = call("validate", "-f", str(wrong(tmp_path)), "-o", "json")
    assert done.code == 2
    told = json.loads(done.out)
    assert told["valid"] is False
    assert {(problem["code"], problem["line"], problem["column"]) for problem in told["problems"]} == {
        ("PL101", 7, 5),
        ("PL102", 8, 18),
    }


def test_validate_says_what_the_cluster_must_have(call: Call) -> None:
    done = call("validate", "-f", IRIS, "--target", "cluster", "-o", "json")
    (service,) = json.loads(done.out)["services"]
    assert service["mode"] == "serverless"
    assert {"kind": "crd", "name": "services.serving.knative.dev"}.items() <= service["needs"][0].items()
    for latency in ((), ("-f", "examples/services/iris-latency.yaml")):
        here = json.loads(call("validate", "-f", IRIS, *latency, "-o", "json").out)["services"]
        assert not any(service["needs"] for service in here), "this machine needs none of it"


def test_warnings_are_numbered_on_stderr_and_end_nothing(call: Call) -> None:
    done = call("render", "-f", "examples/services/deepseek-disaggregated.yaml")
    assert done.code == 0
    assert "warning" not in done.out
    lines = done.err.splitlines()
    assert [line.split()[0] for line in lines] == [f"[{number}]" for number in range(1, len(lines) + 1)]
    assert all(": warning PL" in line for line in lines)


def test_strict_makes_errors_of_warnings(call: Call) -> None:
    document = "examples/services/deepseek-multi-node.yaml"
    done = call("render", "-f", document, "--strict", "--set", "spec.engine.hostNetwork=true")
    assert done.code == 2
    assert done.out == ""
    assert "error PL350" in done.err
    assert "warning" not in done.err


def test_validate_finds_that_there_is_no_model(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(Path("examples/services/flowers-sklearn.yaml").read_text().replace("gs://", "./"))
    done = call("validate", "-f", str(file))
    assert done.code == 2
    assert "error PL341: spec.predictor.model.storageUri: ./" in done.err
    assert f"there is no {tmp_path}/" in done.err


def test_what_can_be_planned_despite_errors_of_reading_is(call: Call, tmp_path: Path) -> None:
    """A service with a misspelled field is; of one whose values could not be read only the model is looked for."""
    text = (SERVICE % ("iris", "./none.onnx")).replace("{name: onnx}", "{name: nonesuch}")
    (tmp_path / "a.yaml").write_text(text.replace("minReplicas", "minReplica"))
    (tmp_path / "b.yaml").write_text(text.replace("minReplicas: 1", "minReplicas: one").replace("iris", "other"))
    done = call("validate", "-f", str(tmp_path), "-o", "json")
    problems = [(Path(each["file"]).stem, each["code"]) for each in json.loads(done.out)["problems"]]
    assert problems == [("a", "PL101"), ("b", "PL102"), ("a", "PL341"), ("b", "PL341"), ("a", "PL224")]
    assert "error PL224" in call("deploy", "-f", str(tmp_path), "--dry-run").err


@pytest.mark.parametrize(("flags", "code", "severity"), [(("--target", "cluster"), 0, "warning"), ((), 2, "error")])
def test_validate_looks_for_an_absolute_path_too(
    flags: tuple[str, ...], code: int, severity: str, call: Call, tmp_path: Path
) -> None:
    """On a cluster it may be a path of the image."""
    file = tmp_path / "service.yaml"
    file.write_text(re.sub(r"storageUri: .*", "storageUri: /nowhere/model.onnx", Path(IRIS).read_text()))
    done = call("validate", "-f", str(file), *flags)
    assert done.code == code, done.err
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "storageUri" in text)
    assert re.search(rf"{file}:{line}:\d+: {severity} PL341: .*there is no /nowhere/model.onnx", done.err)


def test_missing_files_are_named_all_at_once_and_end_with_2(call: Call) -> None:
    done = call("render", "-f", "none.yaml", "-f", IRIS, "--catalog", "neither")
    assert done.code == 2
    assert done.out == ""
    assert "none.yaml, neither" in done.err


def test_no_file_at_all_is_a_usage_error(call: Call) -> None:
    assert call("render").code == 2


def test_files_directories_and_standard_input_are_read_together(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.yaml").write_text(SERVICE % ("one", "s3://m/1"))
    (tmp_path / "two.json").write_text(json.dumps(yaml.safe_load(SERVICE % ("two", "s3://m/2"))))
    (tmp_path / "notes.txt").write_text("not a document")
    monkeypatch.setattr("sys.stdin", io.StringIO(SERVICE % ("three", "s3://m/3")))
    done = call("validate", "-f", str(tmp_path), "-f", "-", "-f", IRIS, "-o", "json")
    assert [service["name"] for service in json.loads(done.out)["services"]] == ["one", "two", "three", "iris"]


def test_a_problem_on_standard_input_is_placed_there(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a: [1"))
    done = call("render", "-f", "-")
    assert done.code == 2
    assert done.err.startswith("<stdin>:2:1: error PL100")


@pytest.mark.parametrize("name", ["iris", "default/iris"])
def test_only_the_services_that_are_named_are_shown(name: str, call: Call) -> None:
    done = call("validate", name, "-f", "examples/services", "--target", "cluster", "-o", "json")
    assert [service["name"] for service in json.loads(done.out)["services"]] == ["iris"]


def test_a_name_that_no_service_has_ends_with_3(call: Call) -> None:
    done = call("explain", "rose", "-f", IRIS)
    assert done.code == 3
    assert "no service is called rose; the documents have iris" in done.err


def test_set_changes_the_document_before_it_is_checked(call: Call) -> None:
    done = call("render", "-f", IRIS, "--set", "spec.predictor.maxReplicas=7", "--set", "metadata.namespace=lab")
    service = next(each for each in yaml.safe_load_all(done.out) if each["apiVersion"] == "serving.knative.dev/v1")
    assert service["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/max-scale"] == "7"
    assert service["metadata"]["namespace"] == "lab"
    refused = call("render", "-f", IRIS, "--set", "spec.predictor.maxReplica=7")
    assert refused.code == 2
    assert "--set spec.predictor.maxReplica=7: error PL101" in refused.err


def test_variables_are_filled_in_only_where_asked_for(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDS", "a: {b: c}")
    path = tmp_path / "service.yaml"
    path.write_text(SERVICE % ("iris", "s3://m/${REGION:-eu}") + "      env: [{name: WORDS, value: '${WORDS}'}]\n")
    filled = call("render", "-f", str(path), "--env").out
    assert "value: s3://m/eu\n" in filled
    assert "value: 'a: {b: c}'\n" in filled
    assert "value: ${WORDS}\n" in call("render", "-f", str(path)).out
    monkeypatch.delenv("WORDS")
    unset = call("render", "-f", str(path), "--env")
    assert unset.code == 2
    assert "error PL107" in unset.err


def test_a_catalogue_comes_from_flag_or_variable(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runtime.yaml").write_text(RUNTIME)
    assert "example.com/mine:1" in call("render", "-f", IRIS, "--catalog", str(tmp_path)).out
    monkeypatch.setenv("PILOTLIGHT_CATALOG", os.pathsep.join(["examples/services", str(tmp_path / "runtime.yaml")]))
    assert "example.com/mine:1" in call("render", "-f", IRIS).out


def test_a_catalogue_is_a_whole_tree_in_which_other_kinds_are_passed_over(call: Call, tmp_path: Path) -> None:
    (tmp_path / "vendor" / "engine").mkdir(parents=True)
    (tmp_path / "vendor" / "engine" / "runtime.yaml").write_text(RUNTIME)
    (tmp_path / "vendor" / "kustomization.yaml").write_text(
        "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\n"
    )
    assert "example.com/mine:1" in call("render", "-f", IRIS, "--catalog", str(tmp_path)).out
    (tmp_path / "vendor" / "broken.yaml").write_text(RUNTIME.replace("containers", "container"))
    done = call("render", "-f", IRIS, "--catalog", str(tmp_path))
    assert done.code == 2
    assert f"{tmp_path / 'vendor' / 'broken.yaml'}:8:3: error PL101" in done.err


def test_explain_says_which_runtimes_are_hidden_by_others_of_their_name(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runtime.yaml").write_text(RUNTIME.replace("name: mine", "name: kserve-tritonserver"))
    done = call("explain", "-f", IRIS, "--runtime", "--catalog", str(tmp_path))
    assert "ClusterServingRuntime kserve-tritonserver of built-in is shadowed by that of" in done.err


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_a_namespace_is_for_documents_that_name_none(way: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "variable":
        monkeypatch.setenv("PILOTLIGHT_NAMESPACE", "lab")
    flags = ["-n", "lab"] if way == "flag" else []
    done = call("validate", "-f", IRIS, *flags, "-o", "json")
    assert json.loads(done.out)["services"][0]["namespace"] == "lab"


def test_flags_say_what_a_clusters_configuration_would(call: Call) -> None:
    flags = ("--default-mode", "raw", "--set", "spec.predictor.minReplicas=1", "--pod-security", "baseline")
    (service,) = json.loads(call("explain", "-f", IRIS, *flags, "-o", "json").out)["services"]
    decided = {decision["topic"]: decision["value"] for decision in service["decisions"]}
    assert (decided["predictor: mode"], decided["predictor: pod security"]) == ("raw", "baseline")


def test_capabilities_are_read_from_a_file_and_flags_win(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("knative: false\ndefaultMode: serverless\nimage: example.com/predictor:9\nfeatures: [a]\ngpus: 2\n")
    refused = call("render", "-f", IRIS, "--capabilities", str(path))
    assert refused.code == 2
    assert "needs Knative" in refused.err
    flags = ("--default-mode", "raw", "--set", "spec.predictor.minReplicas=1")
    assert call("render", "-f", IRIS, "--capabilities", str(path), *flags).code == 0


def test_a_wrong_capability_is_told_like_any_other_problem(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("knativ: true\nkeda: 2.21\ndefaultMode: both\n")
    done = call("render", "-f", IRIS, "--capabilities", str(path))
    assert done.code == 2
    assert f"{path}:1:1: error PL101: knativ: unknown field of capabilities; did you mean knative?" in done.err
    assert f"{path}:2:7: error PL102: keda" in done.err
    assert f"{path}:3:14: error PL104: defaultMode" in done.err


def test_what_runs_now_is_read_for_a_serverless_canary(call: Call, tmp_path: Path) -> None:
    running = tmp_path / "running.yaml"
    running.write_text(call("render", "-f", IRIS).out)
    flags = ("--set", "spec.predictor.canaryTrafficPercent=10", "--set", "spec.predictor.model.storageUri=s3://m/2")
    done = call("render", "-f", IRIS, *flags, "--current", str(running))
    service = next(each for each in yaml.safe_load_all(done.out) if each["apiVersion"] == "serving.knative.dev/v1")
    assert [share["percent"] for share in service["spec"]["traffic"]] == [10, 90]
    old = next(
        each for each in yaml.safe_load_all(running.read_text()) if each["apiVersion"] == "serving.knative.dev/v1"
    )
    assert service["spec"]["traffic"][1]["revisionName"] == old["spec"]["template"]["metadata"]["name"]


def test_what_runs_now_keeps_its_pods_beside_a_raw_canary(call: Call, tmp_path: Path) -> None:
    path = "examples/services/iris-latency.yaml"
    running = tmp_path / "running.json"
    running.write_text(call("render", "-f", path, "-o", "json").out)
    flags = ("--set", "spec.predictor.canaryTrafficPercent=20", "--set", "spec.predictor.model.storageUri=s3://m/2")
    done = call("render", "-f", path, *flags, "--current", str(running))
    assert done.code == 0, done.err
    deployments = {
        each["metadata"]["name"]: each for each in yaml.safe_load_all(done.out) if each["kind"] == "Deployment"
    }
    assert len(deployments) == 2
    old, new = (json.dumps(deployments[name]) for name in ("iris-latency-predictor", "iris-latency-canary-predictor"))
    assert "s3://models/iris/model.onnx" in old
    assert "s3://m/2" in new
    route = next(each for each in yaml.safe_load_all(done.out) if each["kind"] == "HTTPRoute")
    assert sorted(backend["weight"] for backend in route["spec"]["rules"][0]["backendRefs"]) == [20, 80]
