"""The linter as its callers meet it: files, folders, lists, standard input, JSON; and no document ends it."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.platform.lint.lint_cases import findings, revision, scaled

from pilotlight.lint import RULES, lint, lint_files
from pilotlight.spec.problems import InvalidDocument

KEYS = ["rule", "severity", "object", "path", "file", "line", "column", "message", "fix"]

# What a person would call right: a latency ScaledObject that wakes from zero, and its Deployment.
RIGHT = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: m}
spec:
  scaleTargetRef: {name: m}
  minReplicaCount: 0
  maxReplicaCount: 4
  cooldownPeriod: 900
  initialCooldownPeriod: 900
  fallback: {failureThreshold: 3, replicas: 1, behavior: currentReplicasIfHigher}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior: {scaleUp: {policies: [{type: Pods, value: 1, periodSeconds: 120}]}}
  triggers:
  - type: external-push
    metadata: {scalerAddress: "keda-add-ons-http-external-scaler.keda:9090", interceptorRoute: m}
  - type: prometheus
    metricType: Value
    metadata:
      serverAddress: http://prometheus:9090
      threshold: "0.5"
      activationThreshold: "1000000"
      ignoreNullValues: "false"
      query: >-
        (histogram_quantile(0.95, sum by (le) (rate(x_bucket[2m]))) >= 0
        and on() sum(rate(x_count[2m])) > 0) or vector(0)
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: m}
spec:
  progressDeadlineSeconds: 900
  template:
    spec:
      containers:
      - name: main
        image: predictor
        startupProbe: {httpGet: {path: /v2/health/live, port: 8080}, periodSeconds: 5, failureThreshold: 180}
        readinessProbe: {httpGet: {path: /v2/health/ready, port: 8080}}
        livenessProbe: {httpGet: {path: /v2/health/live, port: 8080}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: m}
spec:
  template:
    metadata:
      name: m-v2
      annotations: {autoscaling.knative.dev/min-scale: "0", autoscaling.knative.dev/max-scale: "4"}
    spec:
      containers: [{image: predictor, readinessProbe: {httpGet: {path: /v2/health/ready}}}]
  traffic: [{revisionName: m-v1, percent: 90, tag: stable}, {revisionName: m-v2, percent: 10, tag: canary}]
"""


def test_what_is_right_has_no_finding(tmp_path: Path) -> None:
    (tmp_path / "right.yaml").write_text(RIGHT)
    assert lint_files([str(tmp_path)]) == []


def test_findings_come_in_the_order_of_files_and_lines(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.json", "c.yml", "notes.txt"):
        text = scaled("minReplicaCount: 9\nmaxReplicaCount: 1\n")
        (tmp_path / name).write_text(json.dumps({"kind": "HTTPScaledObject"}) if name.endswith("json") else text)
    found = lint_files([str(tmp_path / "c.yml"), str(tmp_path)])
    assert [Path(each.location.file).name for each in found] == sorted(
        (Path(each.location.file).name for each in found), key=["c.yml", "a.json", "b.yaml"].index
    )
    lines = [each.location.line for each in found if each.location.file.endswith("b.yaml")]
    assert lines == sorted(lines)


def test_objects_of_different_files_are_judged_together(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text("kind: Deployment\nmetadata: {name: m}\nspec:\n  replicas: 2\n")
    (tmp_path / "scaler.yaml").write_text(scaled("scaleTargetRef: {name: m}\n"))
    assert "PL480" in {each.rule for each in lint_files([str(tmp_path)])}
    assert "PL480" not in {each.rule for each in lint_files([str(tmp_path / "deployment.yaml")])}


def test_standard_input_and_lists_as_kubectl_writes_them() -> None:
    text = "kind: List\nitems:\n- kind: HTTPScaledObject\n  metadata: {name: m}\n"
    (finding,) = lint_files(["-"], stdin=io.StringIO(text))
    assert str(finding.location) == "<stdin>:3:3"
    assert finding.path == "items[0].kind"
    assert finding.object == "HTTPScaledObject m"


def test_a_finding_reads_as_one_line_and_has_one_shape_in_json() -> None:
    (finding,) = lint_files(["-"], stdin=io.StringIO("kind: HTTPScaledObject\nmetadata: {name: m, namespace: ns}\n"))
    assert str(finding).startswith("<stdin>:1:1: warning PL434: kind: deprecated; ")
    assert list(finding.as_json()) == KEYS
    assert json.loads(json.dumps(finding.as_json()))["object"] == "HTTPScaledObject ns/m"


def test_plain_mappings_are_judged_without_places() -> None:
    (finding,) = lint([{"kind": "HTTPScaledObject"}])
    assert str(finding).startswith("warning PL434: kind: ")


@pytest.mark.parametrize("text", ["a: [", "a: 1\na: 2\n"])
def test_what_is_no_yaml_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.yaml").write_text(text)
    with pytest.raises(InvalidDocument, match=r"broken\.yaml:"):
        lint_files([str(tmp_path / "broken.yaml")])


def test_files_that_are_not_there_are_named_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidDocument) as caught:
        lint_files([str(tmp_path / "gone.yaml"), str(tmp_path / "empty")])
    assert [Path(problem.location.file).name for problem in caught.value.problems] == ["gone.yaml", "empty"]


def test_loading_the_rules_loads_no_parser() -> None:
    code = "import sys, pilotlight.lint; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"yaml", "jinja2", "kubernetes"} & set(loaded)


WORDS = [
    "spec", "metadata", "name", "annotations", "triggers", "type", "query", "threshold", "prometheus", "cpu",
    "template", "containers", "resources", "limits", "requests", "memory", "nvidia.com/gpu",
    "readinessProbe", "livenessProbe",
    "startupProbe", "traffic", "percent", "tag", "replicas", "scaleTargetRef", "ports", "env", "minReplicaCount",
    "autoscaling.knative.dev/window", "autoscaling.knative.dev/target", "fallback", "advanced", "scalingModifiers",
    "formula", "metricType", "volumes", "labels", "strategy", "sum(x) / (", "1", "-1", "{", "1e999", "10s",
]  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=30,
)
KINDS = ["List", "Pod", *sorted({kind.rpartition("/")[2] for rule in RULES for kind in rule.text.kinds})]


@st.composite
def objects(draw: st.DrawFn) -> dict[str, Any]:
    version = draw(st.sampled_from(["serving.knative.dev/v1", "apps/v1", 1, None]))
    return {
        "apiVersion": version, "kind": draw(st.sampled_from(KINDS)), "metadata": draw(VALUES), "spec": draw(VALUES),
    }  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(objects(), max_size=3))
def test_no_document_is_too_strange_to_be_read(documents: list[dict[str, Any]]) -> None:
    found = [finding.as_json() for finding in lint(documents)]
    assert json.loads(json.dumps(found)) == found


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="sum by(le)rate[]{}=\"'`,./x_:0<> and or", max_size=60))
def test_no_query_is_too_strange_to_be_read(query: str) -> None:
    triggers = [{"type": "prometheus", "metadata": {"query": query}}]
    found = lint([{"kind": "ScaledObject", "spec": {"triggers": triggers}}])
    assert all(finding.message for finding in found)


def test_gpus_that_a_drain_holds_are_named_where_a_service_scales_to_zero() -> None:
    gpu = "resources: {limits: {nvidia.com/gpu: 1}}"
    annotations = 'template:\n    metadata: {annotations: {"autoscaling.knative.dev/min-scale": "1"}}'
    kept = revision(gpu).replace("template:", annotations)
    drained = [each.message for text in (revision(gpu), kept) for each in findings(text) if each.rule == "PL472"]
    assert ["30 s of its drain" in message for message in drained] == [True, False]
