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
