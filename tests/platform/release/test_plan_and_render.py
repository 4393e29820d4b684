"""From files to manifests: everything that is wrong is told at once, everything that is right is rendered."""

from pathlib import Path
from time import process_time

import pytest

from pilotlight.plan.types import Capabilities, Current, Traffic
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.spec.problems import InvalidDocument

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: %s}
spec:
  predictor:
    minReplicas: %s
    model: {modelFormat: {name: onnx}, storageUri: s3://models/iris}
"""
RUNTIME = """
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: mine}
spec:
  supportedModelFormats: [{name: onnx, autoSelect: true, priority: 9}]
  protocolVersions: [v1, v2]
  containers:
  - name: kserve-container
    image: example.com/mine:1
"""


def written(folder: Path, *documents: str) -> Sources:
    (folder / "services.yaml").write_text("---\n".join(documents))
    return Sources([str(folder)])


def test_files_become_manifests(tmp_path: Path) -> None:
    planned = plan_all(written(tmp_path, SERVICE % ("iris", 0), SERVICE % ("other", 1)))
    assert [plan.name for plan in planned.plans] == ["iris", "other"]
    keys = {manifest.key for manifest in planned.manifests()}
    assert ("serving.knative.dev", "Service", "default", "iris-predictor") in keys
    assert ("serving.knative.dev", "Service", "default", "other-predictor") in keys


def test_every_error_of_every_document_is_told_at_once(tmp_path: Path) -> None:
    wrong = SERVICE % ("one", "many"), SERVICE % ("two", -1)
    with pytest.raises(InvalidDocument) as told:
        plan_all(written(tmp_path, *wrong))
    assert {problem.location.file for problem in told.value.problems} == {str(tmp_path / "services.yaml")}
    assert len({problem.location.line for problem in told.value.problems}) == 2


def test_errors_of_planning_are_collected_over_services(tmp_path: Path) -> None:
    unknown = (SERVICE % ("one", 1)).replace("onnx", "nonesuch"), (SERVICE % ("two", 1)).replace("onnx", "neither")
    with pytest.raises(InvalidDocument, match="nonesuch") as told:
        plan_all(written(tmp_path, *unknown))
    assert "neither" in str(told.value)


def test_what_runs_now_belongs_to_one_service(tmp_path: Path) -> None:
    document = (SERVICE % ("iris", 0)).replace("minReplicas: 0", "minReplicas: 0\n    canaryTrafficPercent: 10")
    old = Current({"iris-predictor": ("old",)}, {"iris-predictor": (Traffic("old", 100),)})
    sources = written(tmp_path, document)
    (plan,) = plan_all(sources, Capabilities(), {("default", "iris"): old}).plans
    (alone,) = plan_all(sources, Capabilities(), {("elsewhere", "iris"): old}).plans
    assert {share.revision: share.percent for share in plan.workloads[0].traffic}["old"] == 90
    assert [share.percent for share in alone.workloads[0].traffic] == [100]


def test_a_runtime_beside_the_service_comes_before_the_built_in_ones(tmp_path: Path) -> None:
    planned = plan_all(written(tmp_path, SERVICE % ("iris", 1), RUNTIME))
    (image,) = {
        manifest.document["spec"]["template"]["spec"]["containers"][0]["image"]
        for manifest in planned.manifests()
        if manifest.key[:2] == ("serving.knative.dev", "Service")
    }
    assert image == "example.com/mine:1"


def test_a_placeholder_that_a_runtime_gets_wrong_is_told_where_it_is_written(tmp_path: Path) -> None:
    runtime = RUNTIME + '    args: ["{{.Name}}", "{{ .Spec }}"]\n'
    with pytest.raises(InvalidDocument) as told:
        plan_all(written(tmp_path, runtime, SERVICE % ("iris", 1)))
    (problem,) = told.value.problems
    assert (problem.code, problem.path) == ("PL230", "spec.containers[0].args[1]")
    assert problem.location == (str(tmp_path / "services.yaml"), 11, 25)


def test_a_thousand_services_are_rendered_in_seconds(tmp_path: Path) -> None:
    """Two to three in CPU time, of which a busy machine makes several. Raw mode has the most objects."""
    sources = written(tmp_path, *(SERVICE % (f"iris-{number}", 1) for number in range(1000)))
    assert any(seconds_to_render(sources) < 20 for _ in range(3))


def seconds_to_render(sources: Sources) -> float:
    started = process_time()
    assert len(plan_all(sources, Capabilities(default_mode="raw")).manifests()) >= 8000
    return process_time() - started
