"""Where document and runtime do not fit together, the plan says so: the API server would, one pod at a time."""

import io

import pytest

from pilotlight.catalogue.catalogue import builtin
from pilotlight.plan import plan
from pilotlight.spec.load_documents import load
from pilotlight.spec.problems import InvalidDocument

PREDICTOR = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    model:
      modelFormat: {name: onnx}
      storageUri: s3://models/iris
"""


@pytest.mark.parametrize(
    ("lines", "code", "said", "line"),
    [
        ('resources: {requests: {nvidia.com/gpu: "2"}, limits: {nvidia.com/gpu: "1"}}', "PL362", "requests 2 of", 9),
        ("volumeMounts: [{name: data, mountPath: /data}]", "PL363", "add it to spec.predictor.volumes", 9),
    ],
)
def test_what_the_api_server_would_refuse_is_refused_at_its_place(lines: str, code: str, said: str, line: int) -> None:
    (service,) = load(["-"], stdin=io.StringIO(f"{PREDICTOR}      {lines}\n")).services
    with pytest.raises(InvalidDocument) as raised:
        plan(service, builtin())
    (problem,) = raised.value.problems
    assert (problem.code, problem.location.line) == (code, line)
    assert said in problem.message


@pytest.mark.parametrize("probe", ["readinessProbe: {httpGet: {path: /up}}", "livenessProbe: {tcpSocket: {}}"])
def test_a_sidecar_s_probe_without_a_port_is_refused_at_its_place(probe: str) -> None:
    sidecar = f"    containers:\n    - {{name: side, image: 's:1', {probe}}}\n"
    (service,) = load(["-"], stdin=io.StringIO(PREDICTOR + sidecar)).services
    with pytest.raises(InvalidDocument) as raised:
        plan(service, builtin())
    (problem,) = [problem for problem in raised.value.problems if problem.severity == "error"]
    assert (problem.code, problem.location.line) == ("PL366", 9)
    assert "of side names no port" in problem.message


def test_one_number_written_in_two_ways_is_one_number() -> None:
    lines = '      resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: "1"}}\n'
    (service,) = load(["-"], stdin=io.StringIO(PREDICTOR + lines)).services
    assert plan(service, builtin()).workloads


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("env: [{name: HF_TOKEN, value: abc}]", ["HF_TOKEN"]),
        ("env: [{name: DB, value: 'postgres://svc:hunter2@db/x'}]", ["DB"]),
        ("env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]", []),
        ("env: [{name: MAX_TOKENS, value: '5'}, {name: HF_TOKEN, value: $(OTHER)}]", []),
    ],
)
def test_a_credential_in_the_document_is_warned_about_and_not_repeated(lines: str, named: list[str]) -> None:
    (service,) = load(["-"], stdin=io.StringIO(f"{PREDICTOR}      {lines}\n")).services
    found = [each for each in plan(service, builtin()).warnings if each.code == "PL368"]
    assert [each.message.partition(" ")[0] for each in found] == named
    assert not [each for each in found if "hunter2" in each.message or "abc" in each.message]


def test_a_password_in_a_storage_uri_is_warned_about_at_its_place() -> None:
    (service,) = load(["-"], stdin=io.StringIO(PREDICTOR.replace("s3://models", "https://user:hunter2@host"))).services
    (found,) = [each for each in plan(service, builtin()).warnings if each.code == "PL368"]
    assert (found.path, found.location.line) == ("spec.predictor.model.storageUri", 8)
