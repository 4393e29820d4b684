"""Services of several components, as processes that find each other through the gateway and by files."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from tests.e2e.embedded.models import slow, write_model
from tests.embedded import FLOWER, IRIS, ROOT, Platform, commands_of, load
from tests.serving import read_answer, rendered

from pilotlight.errors import PlatformError
from pilotlight.wire import unix_socket

# Asks the predictor and says which species has the highest score; the address is all that it is told.
TRANSFORMER = """
import json
import os
import urllib.request

import numpy as np

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"species": ("INT64", [-1]), "asked": ("BYTES", [1])}


def predict(x):
    url = f"http://{os.environ['INFERENCE_PREDICTOR_HOST']}/v2/models/two/infer"
    if not x.any():
        return {"species": np.zeros(len(x), np.int64), "asked": np.array([url.encode()], object)}
    body = {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
        found = json.load(answer)["outputs"][0]
    scores = np.array(found["data"]).reshape(found["shape"])
    return {"species": scores.argmax(axis=1), "asked": np.array([url.encode()], object)}
"""

KSERVE_TRANSFORMER = """
from kserve import InferRequest, Model

INPUTS = {"x": ("FP32", [-1, 4])}
OUTPUTS = {"y": ("FP32", [-1, 3])}


class Passing(Model):
    def __init__(self, name):
        super().__init__(name)
        self.ready = True

    def preprocess(self, payload, headers=None):
        return InferRequest("two", infer_inputs=payload.inputs)
"""


RUNNER = """
      name: ome-container
      image: pilotlight/predictor:0.1.0
      env:
        - {name: INFERENCE_MODEL_NAME, value: "{{.Name}}"}"""
SPLIT = "/split/v2/models/split/infer"


def transformed(uri: str, mode: str = "Standard", predictor_minimum: int = 1, extra: str = "") -> str:
    return f"""
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: two
  annotations:
    serving.kserve.io/deploymentMode: {mode}
    autoscaling.knative.dev/window: 6s
spec:
  transformer:
    minReplicas: 1
    maxReplicas: 1
    containers:
      - name: kserve-container
        image: pilotlight/predictor:0.1.0
        env:
          - {{name: INFERENCE_MODEL_PATH, value: {uri}}}
{extra}
  predictor:
    minReplicas: {predictor_minimum}
    maxReplicas: 2
    model:
      modelFormat: {{name: onnx}}
      protocolVersion: v2
      storageUri: {IRIS.as_uri()}
"""


def split(routing: str = "round_robin", engines: int = 2, decoders: int = 0) -> str:
    """An engine and a router, as OME has them; with `decoders`, prefill and decode apart."""
    decoder = f"  decoder: {{minReplicas: {decoders}, maxReplicas: {decoders}}}" if decoders else ""
    return f"""
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata:
  name: split
spec:
  model: {{name: iris}}
  runtime: {{name: both}}
  router:
    minReplicas: 1
    maxReplicas: 1
    config: {{routing_strategy: {routing}, health_check_interval: 1s}}
  engine: {{minReplicas: {engines}, maxReplicas: {engines}}}
{decoder}
---
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata:
  name: iris
spec:
  modelFormat: {{name: onnx}}
  storage:
    storageUri: {IRIS.as_uri()}
---
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata:
  name: both
  annotations: {{pilotlight.dev/predictor: "true", pilotlight.dev/disaggregation: llm-d}}
spec:
  supportedModelFormats:
    - {{modelFormat: {{name: onnx, version: "*"}}, autoSelect: false}}
  engineConfig:
    runner: {RUNNER}
  decoderConfig:
    runner: {RUNNER}
"""


def counted(platform: Platform, role: str) -> list[int]:
    """Requests that each replica of the component has answered, by its own metrics."""
    folder = platform.home.run / "endpoints" / "default"
    replicas = json.loads((folder / f"split-{role}.json").read_text())
    return [answered(replica["host"], replica["port"]) for replica in replicas]


def answered(host: str, port: int) -> int:
    with unix_socket.connect(host, port) as connection:
        connection.settimeout(60)
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        lines = connection.makefile().read().splitlines()
    counts = [line for line in lines if line.startswith("pilotlight_request_duration_seconds_count")]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts if 'code="200"' in line)


def test_an_explainer_asks_a_predictor_that_is_closed_to_others(platform: Platform, tmp_path: Path) -> None:
    model = write_model(tmp_path, TRANSFORMER.replace("/two/", "/closed/"))
    document = transformed(model).replace("  transformer:", "  explainer:").replace("name: two", "name: closed")
    tokens = f"pilotlight.dev/auth-tokens-sha256: {hashlib.sha256(b'ada').hexdigest()}"
    platform.deploy(document.replace("    autoscaling", f"    {tokens}\n    autoscaling", 1))
    platform.wait_phase("Ready", name="closed")
    assert platform.ask("/closed/v2/models/closed/infer", FLOWER).status == 401
    file = platform.home.run / "endpoints" / "default" / "closed-explainer.json"
    platform.wait(lambda: file.exists() and bool(json.loads(file.read_text())), "the explainer to have an endpoint")
    (replica,) = json.loads(file.read_text())
    with unix_socket.connect(replica["host"], replica["port"]) as connection:
        connection.settimeout(60)
        connection.sendall(rendered("POST", "/v2/models/closed/infer", FLOWER, {}, "localhost"))
        answer = read_answer(connection)
    assert answer.status == 200, answer
    outputs = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    assert outputs["species"] == [0]
    assert "/default/closed@" in outputs["asked"][0]


def test_a_transformer_asks_its_predictor_through_the_gateway(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(transformed(write_model(tmp_path, TRANSFORMER)))
    status = platform.wait_phase("Ready", name="two")
    assert {row.role: row.ready for row in status.revisions} == {"transformer": 1, "predictor": 1}
    assert {condition.type: condition.status for condition in status.conditions} == {
        "PredictorReady": "True",
        "TransformerReady": "True",
        "LatestDeploymentReady": "True",
        "IngressReady": "True",
        "Ready": "True",
    }
    reply = platform.ask("/two/v2/models/two/infer", FLOWER)
    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
    assert outputs["species"] == [0]
    gateway = f"http://127.0.0.1:{platform.address.gateway_port}"
    assert outputs["asked"][0].startswith(f"{gateway}/default/two-predictor@")
    assert platform.ask("/default/two-predictor/v2/models/two/infer", FLOWER).status == 404  # only with the key
    key = outputs["asked"][0].partition("@")[2].partition("/")[0]
    shown = [command for _, command in commands_of(platform.home)]
    assert key
    assert not [command for command in shown if key in command], "any user of the machine could read it"
    platform.wait(
        lambda: all(row.requests == 1 for row in platform.status("two").revisions), "both to have counted the request"
    )


def test_a_request_wakes_the_transformer_and_the_predictor_behind_it(platform: Platform, tmp_path: Path) -> None:
    document = transformed(write_model(tmp_path, TRANSFORMER), "Serverless", predictor_minimum=0)
    platform.deploy(document.replace("minReplicas: 1", "minReplicas: 0"))
    platform.wait_phase("Standby", name="two")
    platform.wait(lambda: not platform.replicas(), "both processes to end")
    assert platform.ask("/two/v2/models/two/infer", FLOWER).status == 200
    platform.wait(
        lambda: all(row.cold_starts == 1 for row in platform.status("two").revisions), "both cold starts to be counted"
    )


@pytest.mark.long  # importing KServe takes half a minute on a busy machine
def test_a_kserve_transformer_runs_unchanged(platform: Platform, tmp_path: Path) -> None:
    pytest.importorskip("kserve", reason="the kserve extra is not installed")
    platform.deploy(transformed(write_model(tmp_path, KSERVE_TRANSFORMER)))
    platform.wait_phase("Ready", name="two")
    reply = platform.ask("/two/v2/models/two/infer", FLOWER)
    assert reply.json()["outputs"][0]["shape"] == [1, 3]


def test_replicas_of_a_component_behind_another_are_listed_in_a_file(platform: Platform, tmp_path: Path) -> None:
    platform.deploy(transformed(write_model(tmp_path, TRANSFORMER)))
    platform.wait_phase("Ready", name="two")
    folder = platform.home.run / "endpoints" / "default"
    file = folder / "two-predictor.json"
    platform.wait(lambda: len(json.loads(file.read_text())) == 1, "the file to name it")  # the next table's doing
    listed = json.loads(file.read_text())
    assert listed[0]["id"].startswith("two-predictor-")
    assert not (folder / "two-transformer.json").exists()
    platform.target.delete(("default", "two"))
    platform.wait(lambda: not (folder / "two-predictor.json").exists(), "the file to go")


def test_a_router_spreads_requests_over_the_engines_that_it_finds(platform: Platform) -> None:
    platform.deploy(split())
    status = platform.wait_phase("Ready", name="split")
    platform.wait(lambda: all(row.ready == row.desired for row in platform.status("split").revisions), "two engines")
    assert {condition.type for condition in status.conditions} >= {"RouterReady", "EngineReady", "Ready"}
    assert platform.ask(SPLIT).status == 200
    platform.wait(
        lambda: platform.ask(SPLIT).status == 200 and min(counted(platform, "engine")) > 0, "both to be found"
    )
    before = counted(platform, "engine")
    for _ in range(20):
        assert platform.ask(SPLIT).status == 200
    taken = [now - then for now, then in zip(counted(platform, "engine"), before, strict=True)]
    assert taken == [10, 10]


def test_an_engine_behind_a_router_is_replaced_without_a_failed_request(platform: Platform) -> None:
    platform.deploy(split("least_loaded"))
    platform.wait_phase("Ready", name="split")
    assert platform.ask(SPLIT).status == 200
    with load(platform, SPLIT, clients=2) as traffic:
        platform.deploy(split("least_loaded").replace("maxReplicas: 2}", "maxReplicas: 2, containerConcurrency: 9}"))
        engines = [row.name for row in platform.status("split").revisions if row.role == "engine"]
        assert len(engines) == 2
        platform.wait(
            lambda: [row.ready for row in platform.status("split").revisions if row.role == "engine"] == [2],
            "the new engines alone",
        )
    assert not traffic.failed


def test_an_llm_inference_service_answers_behind_its_scheduler(platform: Platform, tmp_path: Path) -> None:
    """The example, with our predictor for an engine and a model without weights."""
    document = yaml.safe_load((ROOT / "examples/services/qwen-llm.yaml").read_text())
    document["spec"]["model"] = {"uri": write_model(tmp_path), "name": "echo"}
    document["spec"]["template"]["containers"] = [{"name": "main", "image": "pilotlight/predictor:0.1.0"}]
    platform.deploy(yaml.safe_dump(document))
    platform.wait_phase("Ready", name="qwen-llm")
    assert {row.role for row in platform.status("qwen-llm").revisions} == {"router", "engine"}
    assert platform.ask("/qwen-llm/v2/models/echo/infer", slow(0.5)).json()["outputs"][0]["data"] == [0.5]


def test_prefill_and_decode_are_processes_apart_and_requests_go_to_the_decoder(
    platform: Platform,
) -> None:
    platform.deploy(split("prefill_decode", engines=1, decoders=1))
    platform.wait_phase("Ready", name="split")
    assert platform.ask(SPLIT).status == 200
    assert {row.role for row in platform.status("split").revisions} == {"router", "engine", "decoder"}
    assert counted(platform, "decoder")[0] >= 1
    assert counted(platform, "engine") == [0]


def test_an_engine_behind_a_router_that_could_fall_to_zero_is_refused_with_the_reason(platform: Platform) -> None:
    with pytest.raises(PlatformError, match="split-engine: is scaled by requests, but its router"):
        platform.deploy(split(engines=2).replace("engine: {minReplicas: 2", "engine: {minReplicas: 0"))


def test_a_component_with_an_image_that_is_not_ours_is_refused_and_named(platform: Platform) -> None:
    document = transformed("file:///nowhere").replace("pilotlight/predictor:0.1.0", "example.com/scaler:1")
    with pytest.raises(
        PlatformError, match=r"spec.transformer.containers: local does not support it: only the Pilotlight"
    ):
        platform.deploy(document)
