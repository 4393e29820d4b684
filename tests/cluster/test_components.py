"""Services of several components on a real cluster: a StatefulSet with addresses, and engine, decoder and router."""

import json

from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import once
from tests.cluster.scenarios import MODEL, Story

SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
MODEL_DOCUMENT = f"""
---
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {{name: iris}}
spec:
  modelFormat: {{name: onnx}}
  storage: {{storageUri: "{MODEL}"}}
"""
# The built-in runtime has no decoder: who splits a service brings one.
RUNTIME = """
---
apiVersion: ome.io/v1beta1
kind: ServingRuntime
metadata: {name: two-phases, annotations: {pilotlight.dev/predictor: "true", pilotlight.dev/disaggregation: llm-d}}
spec:
  supportedModelFormats: [{modelFormat: {name: onnx, version: "*"}, autoSelect: true}]
  protocolVersions: [openInference-v2]
  engineConfig: {runner: {name: ome-container, image: "pilotlight/predictor:0.1.0"}}
  decoderConfig: {runner: {name: ome-container, image: "pilotlight/predictor:0.1.0"}}
"""
RUNNER = f"runner: {{name: ome-container, resources: {json.dumps(SMALL)}}}"
STATEFUL = f"""
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {{name: detector}}
spec:
  model: {{name: iris, kind: BaseModel}}
  engine:
    annotations: {{ome.io/deploymentMode: Stateful}}
    minReplicas: 2
    maxReplicas: 2
    {RUNNER}
{MODEL_DOCUMENT}"""
SPLIT = f"""
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {{name: split}}
spec:
  model: {{name: iris, kind: BaseModel}}
  runtime: {{name: two-phases}}
  router:
    minReplicas: 1
    maxReplicas: 1
    config: {{routing_strategy: prefill_decode, health_check_interval: 1s}}
    runner: {{name: router, resources: {json.dumps(SMALL)}}}
  engine: {{minReplicas: 1, maxReplicas: 1, {RUNNER}}}
  decoder: {{minReplicas: 1, maxReplicas: 1, {RUNNER}}}
{MODEL_DOCUMENT}{RUNTIME}"""


def answers(cluster: Cluster, where: str) -> bool:
    return bool(cluster.kubectl("get", "--raw", where, check=False))


def test_each_replica_of_a_stateful_service_has_an_address_of_its_own(cluster: Cluster, namespace: str) -> None:
    story = Story(cluster, namespace, "detector")
    host = story.deploy(STATEFUL).removeprefix("http://")
    assert once(cluster.gateway, host, "detector") == []
    names = sorted(pod["metadata"]["name"] for pod in story.pods())
    assert names == ["detector-engine-0", "detector-engine-1"]
    for name in names:
        where = f"/api/v1/namespaces/{namespace}/pods/{name}:8080/proxy/v2/health/ready"
        seconds_until(lambda: answers(cluster, where), f"{name} answers")  # noqa: B023
    status = story.status()
    assert (status["phase"], status["mode"]) == ("Ready", "stateful")
    story.do("delete", "detector")
    story.wait_gone()


def test_engine_decoder_and_router_find_each_other_and_answer(cluster: Cluster, namespace: str) -> None:
    """Our predictor stands in for both engines: what is tried is the wiring."""
    story = Story(cluster, namespace, "split")
    host = story.deploy(SPLIT).removeprefix("http://")
    assert {row["role"] for row in story.status()["revisions"]} == {"router", "engine", "decoder"}
    assert once(cluster.gateway, host, "split") == []
    told = {each["type"]: each["status"] for each in story.status()["conditions"]}
    assert told["RouterReady"] == told["EngineReady"] == told["DecoderReady"] == "True"
    story.do("delete", "split")
    story.wait_gone()
