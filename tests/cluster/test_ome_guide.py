"""The examples of OME's guide, as they stand there, by `kubectl apply` and the controller of the chart.

Engines are stand-ins that speak the protocols of SGLang and vLLM; everything else is real.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.gpu_node import claimed_model, gpu_node, is_bed, new_namespace
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.real_helm import find_helm
from tests.cluster.scenarios import Story
from tests.http_reply import Reply

Json = Any
GUIDE = Path(__file__).parents[1] / "platform/spec/documents/ome-guide"
KIND = "inferenceservices.ome.io"
PLATFORM = {
    "crds": {"install": True, "groups": ["ome.io"], "keep": False},
    "gateway": {"enabled": False},
    "roles": {"deployer": "guide-deployer", "viewer": "guide-viewer"},
}


class Guide:
    """One example of the guide in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, ""

    def apply(self, example: str) -> None:
        """Apply it and wait until it is ready."""
        said = self.kubectl("apply", "-f", str(GUIDE / f"{example}.yaml"), "-o", "json")
        self.name = json.loads(said)["metadata"]["name"]
        self.wait_ready()

    def wait_ready(self) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"{KIND}/{self.name}", "--timeout=240s")

    def kubectl(self, *words: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *words)

    def get(self, *words: str) -> Json:
        return self.cluster.get("-n", self.namespace, *words)

    @property
    def status(self) -> Json:
        return self.get(KIND, self.name)["status"]

    def conditions(self) -> dict[str, str]:
        return {each["type"]: each["status"] for each in self.status["conditions"]}

    def pods(self, component: str = "engine") -> list[Json]:
        found = self.get("pods", "-l", f"serving.ome.io/inferenceservice={self.name},component={component}")
        return [each for each in (found or {"items": []})["items"] if "deletionTimestamp" not in each["metadata"]]

    def complete(self, text: str, **fields: Json) -> Reply:
        """One completion at the address of its status, through the ingress that leads there."""
        status = self.status
        through = self.cluster.ingress if status["deploymentMode"] == "serverless" else self.cluster.gateway
        host = status["url"].removeprefix("http://")
        body = {"model": self.name, "prompt": text, **fields}
        headers = {"Content-Type": "application/json"}
        return self.cluster.ask(host, "/v1/completions", body, headers=headers, through=through, timeout=120)

    def end(self) -> None:
        """Delete what was applied, which leaves nothing."""
        if self.name:
            self.kubectl("delete", KIND, self.name, "--timeout=120s")
            Story(self.cluster, self.namespace, self.name).wait_gone()
        self.name = ""


@pytest.fixture(scope="module")
def controlled(cluster: Cluster) -> Iterator[str]:
    """A namespace on a node with GPUs and models, whose InferenceServices the controller of the chart reconciles."""
    if not is_bed(cluster):
        pytest.skip("needs the node of the test bed")
    if cluster.get("crd", KIND):
        pytest.skip("this cluster has InferenceServices of somebody else")
    models = ("llama-3-70b-instruct", "deepseek-r1")
    with gpu_node(cluster, 64, models):
        namespace, system = new_namespace(cluster, "guide"), cluster.new_namespace("guide-system")
        helm = find_helm(cluster, system)
        image = "dev.local/pilotlight/platform:0.1.0"
        controller = {"enabled": True, "image": image, "namespaces": [namespace], "webhook": {"enabled": True}}
        try:
            helm.install("guide", "inference-platform", {**PLATFORM, "controller": controller})
            cluster.kubectl("-n", system, "rollout", "status", "deployment/pilotlight-controller", "--timeout=120s")
            yield namespace
            log = cluster.kubectl("-n", system, "logs", "deployment/pilotlight-controller")
            assert "this is a bug" not in log
        finally:
            cluster.kubectl("delete", "namespace", namespace, "--timeout=120s", check=False)
            helm.run("uninstall", "guide", "--ignore-not-found", "--wait")
            cluster.kubectl("delete", "namespace", system, "--wait=false", check=False)


@pytest.fixture
def guide(cluster: Cluster, controlled: str) -> Iterator[Guide]:
    example = Guide(cluster, controlled)
    yield example
    example.end()


def check_status(guide: Guide, *components: str) -> None:
    """As the guide's page shows it: addresses, conditions, revisions with their traffic, and the model."""
    status, host = guide.status, f"{guide.name}.{guide.namespace}"
    assert status["url"] == f"http://{host}.{guide.cluster.domain}"
    assert status["address"]["url"] == f"http://{host}.svc.cluster.local"
    conditions = {"Ready", "IngressReady", *(f"{each.capitalize()}Ready" for each in components)}
    assert guide.conditions() == dict.fromkeys(conditions, "True")
    assert set(status["components"]) == set(components)
    for component in status["components"].values():
        revision = component["latestReadyRevision"]
        assert component["latestCreatedRevision"] == revision
        assert component["traffic"] == [{"revisionName": revision, "percent": 100, "latestRevision": True}]
    assert status["modelStatus"]["transitionStatus"] == "UpToDate"
    assert set(status["modelStatus"]["modelRevisionStates"].values()) == {"Loaded"}


def text_of(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    return str(reply.json()["choices"][0]["text"])


def test_raw_two_replicas_of_a_model_on_the_node_answer_and_an_hpa_scales_them(guide: Guide) -> None:
    guide.apply("raw")
    check_status(guide, "engine")
    assert text_of(guide.complete("one two three")) == "one two three"
    assert len(guide.pods()) == 2
    scaler = guide.get("hpa", "llama-chat-engine")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 10)
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama-chat-engine"}
    limits = guide.pods()[0]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "4"}, "70B in bf16 need four of 80 GB"
    guide.kubectl("logs", "-l", "serving.ome.io/inferenceservice=llama-chat")


@pytest.fixture
def claimed(guide: Guide) -> Iterator[None]:
    """The model of the serverless example in a claim of the namespace."""
    objects = claimed_model("llama-3-70b-instruct", f"weights-{guide.namespace}")
    objects[0]["spec"]["claimRef"]["namespace"] = guide.namespace
    guide.cluster.apply(*objects, namespace=guide.namespace)
    yield
    guide.end()
    for each in reversed(objects):
        guide.kubectl("delete", each["kind"], each["metadata"]["name"], "--timeout=60s")


@pytest.mark.usefixtures("claimed")
def test_serverless_ends_its_last_replica_and_a_request_starts_one(guide: Guide) -> None:
    guide.apply("serverless")
    check_status(guide, "engine")
    service = guide.get("ksvc", "llama-chat-engine")["spec"]["template"]["metadata"]["annotations"]
    scaled = {name.removeprefix("autoscaling.knative.dev/"): value for name, value in service.items()}
    assert (scaled["min-scale"], scaled["max-scale"], scaled["target"]) == ("0", "10", "10")
    # A model of this size stays for as long as it takes to load; nobody waits twelve minutes here.
    soon = ("scale-to-zero-pod-retention-period=0s", "window=6s")
    guide.kubectl("annotate", KIND, guide.name, *(f"autoscaling.knative.dev/{each}" for each in soon))
    seconds_until(lambda: not guide.pods(), "it is at zero")
    assert guide.conditions()["Ready"] == "True"
    assert text_of(guide.complete("wake up")) == "wake up"
    assert len(guide.pods()) == 1


@pytest.mark.usefixtures("claimed")
def test_an_edit_of_the_least_replicas_leads_from_raw_to_serverless_and_back(guide: Guide) -> None:
    for example in ("raw", "serverless", "raw"):
        guide.apply(example)
        seconds_until(lambda: guide.status["deploymentMode"] == example, f"it is {example}")  # noqa: B023
        seconds_until(lambda: guide.complete("one two").status == 200, "it answers")
    assert guide.get("route.serving.knative.dev", guide.name) is None


def test_multi_node_two_pods_are_one_engine(guide: Guide) -> None:
    guide.apply("multi-node")
    check_status(guide, "engine")
    assert guide.get("leaderworkerset", "deepseek-chat-engine")["spec"]["leaderWorkerTemplate"]["size"] == 2
    leader, worker = sorted(each["metadata"]["name"] for each in guide.pods())
    assert (leader, worker) == ("deepseek-chat-engine-0", "deepseek-chat-engine-0-1")
    assert "2 nodes have joined" in guide.kubectl("logs", leader)
    assert "node 1 of 2 has joined" in guide.kubectl("logs", worker)
    assert text_of(guide.complete("one two three")) == "one two three"
    scaler = guide.get("hpa", "deepseek-chat-engine")["spec"]
    assert (scaler["scaleTargetRef"]["kind"], scaler["minReplicas"], scaler["maxReplicas"]) == ("LeaderWorkerSet", 1, 2)


def test_multi_node_starts_again_as_a_whole_when_a_node_is_lost(guide: Guide) -> None:
    guide.apply("multi-node")
    before = {each["metadata"]["uid"] for each in guide.pods()}
    guide.kubectl("delete", "pod", "deepseek-chat-engine-0-1", "--grace-period=1")

    def whole() -> bool:
        after = [each for each in guide.pods() if each["metadata"]["uid"] not in before]
        return len(after) == 2 and all(each["status"].get("phase") == "Running" for each in after)

    seconds_until(whole, "both pods are new")
    guide.wait_ready()
    seconds_until(lambda: guide.complete("again").status == 200, "it answers again")
    assert text_of(guide.complete("once more")) == "once more"


def test_disaggregated_each_request_is_prefilled_and_decoded(guide: Guide) -> None:
    guide.apply("disaggregated")
    check_status(guide, "engine", "decoder", "router")
    assert (len(guide.pods("engine")), len(guide.pods("decoder")), len(guide.pods("router"))) == (1, 2, 1)
    for number in range(6):
        assert text_of(guide.complete(f"{number} two three")) == f"{number} two three"
    streamed = guide.complete("one two", stream=True)
    assert streamed.body.count(b"data: ") == 3
    for component, least, most in (("engine", 1, 3), ("decoder", 2, 8), ("router", 1, 3)):
        scaler = guide.get("hpa", f"{guide.name}-{component}")["spec"]
        assert (scaler["minReplicas"], scaler["maxReplicas"]) == (least, most)
    alone = {"model": guide.name, "prompt": "without a number"}
    pod = guide.pods("decoder")[0]["status"]["podIP"]
    refused = guide.cluster.ask(pod, "/v1/completions", alone, through=f"http://{pod}:8080")
    assert (refused.status, b"without boostrap room id" in refused.body) == (400, True)
