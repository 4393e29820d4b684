"""The controller with its watches: kubectl applies, edits and deletes, and the operator follows."""

import asyncio
import copy
import json
import threading
from collections.abc import Callable, Iterator

import kopf
import pytest
from kubernetes import client
from tests.eventually import eventually
from tests.platform.controller.documents import IRIS, KIND, RUNTIME, Json, annotated, iris
from tests.platform.targets.kubernetes.live_cluster import LiveCluster

from pilotlight.controller.leader import Leadership
from pilotlight.controller.operator import Operator
from pilotlight.controller.settings import ControllerSettings
from pilotlight.k8s.names import FINALIZER
from pilotlight.targets.kubernetes.client import KubeConnection
from pilotlight.targets.kubernetes.controller_finalizer import ANNOTATION_NAMESPACES, LEASE_NAME

LLM = ("serving.kserve.io/v1alpha1", "LLMInferenceService")
GRAPH = ("serving.kserve.io/v1alpha1", "InferenceGraph")
SETTINGS = ControllerSettings((KIND, LLM, GRAPH), namespaces=("models",))
CHAT = {
    "apiVersion": LLM[0], "kind": LLM[1], "metadata": {"name": "chat", "namespace": "models"},
    "spec": {"model": {"uri": "hf://org/model"}, "replicas": 1},
}  # fmt: skip
FLOWERS = {
    "apiVersion": GRAPH[0], "kind": GRAPH[1], "metadata": {"name": "flowers", "namespace": "models"},
    "spec": {
        "minReplicas": 1, "maxReplicas": 2,
        "nodes": {"root": {"routerType": "Sequence", "steps": [{"name": "one", "serviceName": "iris"}]}},
    },
}  # fmt: skip
NAMESPACES = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each}} for each in ("models", "system")]


class Running:
    """An operator in a thread of its own."""

    def __init__(self, live: LiveCluster) -> None:
        self._live, self._started = live, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._started.wait(30)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await Operator(KubeConnection(self._live.api), SETTINGS).run(self._stop)

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def live() -> Iterator[LiveCluster]:
    with LiveCluster(*NAMESPACES) as cluster:
        yield cluster


@pytest.fixture
def start(live: LiveCluster) -> Iterator[Callable[[], Running]]:
    running: list[Running] = []

    def started() -> Running:
        running.append(Running(live))
        return running[-1]

    yield started
    for each in running:
        each.stop()


def applied(live: LiveCluster, written: Json = IRIS) -> None:
    """Apply a document with kubectl: without a finalizer."""
    document = copy.deepcopy(written)
    del document["metadata"]["finalizers"]
    live._store(document, "ADDED")


def condition(live: LiveCluster) -> Json:
    return ((live.find("InferenceService", "iris") or {}).get("status") or {}).get("conditions", [{}])[0]


def test_apply_edit_drift_and_delete(live: LiveCluster, start: Callable[[], Running]) -> None:
    start()
    applied(live)
    eventually(lambda: live.find("Deployment", "iris-predictor"))
    eventually(lambda: condition(live).get("reason") == "Progressing")
    assert live.find("InferenceService", "iris")["metadata"]["finalizers"] == [FINALIZER]
    assert "annotations" not in live.find("InferenceService", "iris")["metadata"]
    live.edit("InferenceService", "iris", {"spec": iris(maxReplicas=5)["spec"]})
    eventually(lambda: live.find("HorizontalPodAutoscaler", "iris-predictor")["spec"]["maxReplicas"] == 5)
    live.remove("Service", "iris")
    eventually(lambda: live.find("Service", "iris"))
    live.remove("InferenceService", "iris")
    eventually(lambda: live.find("InferenceService", "iris") is None)
    assert [each["kind"] for each in live.objects if each["kind"] not in ("Event", "Namespace")] == []


def test_what_was_deleted_while_no_operator_ran_is_cleaned_up(live: LiveCluster, start: Callable[[], Running]) -> None:
    running = start()
    applied(live)
    eventually(lambda: condition(live).get("reason") == "Progressing")
    running.stop()
    live.remove("InferenceService", "iris")
    assert live.find("Deployment", "iris-predictor")
    start()
    eventually(lambda: live.find("InferenceService", "iris") is None)
    assert live.find("Deployment", "iris-predictor") is None


def test_a_runtime_that_changes_changes_the_services_that_use_it(
    live: LiveCluster, start: Callable[[], Running]
) -> None:
    def image() -> str:
        workload = live.find("Deployment", "iris-predictor")
        return workload["spec"]["template"]["spec"]["containers"][0]["image"] if workload else ""

    live._store(copy.deepcopy(RUNTIME), "ADDED")
    applied(live, iris(model={**IRIS["spec"]["predictor"]["model"], "runtime": "mine"}))
    start()
    eventually(lambda: image() == "mine:1")
    live.edit(
        "ClusterServingRuntime", "mine", {"spec": {"containers": [{"name": "kserve-container", "image": "mine:2"}]}}
    )
    eventually(lambda: image() == "mine:2")
    assert live.find("ControllerRevision", "iris-release-2")


def test_an_llm_inference_service_becomes_a_service_with_a_status_of_its_own(
    live: LiveCluster, start: Callable[[], Running]
) -> None:
    live._store(copy.deepcopy(CHAT), "ADDED")
    start()
    eventually(lambda: "status" in live.find(LLM[1], "chat"))
    assert live.find("Deployment", "chat-engine")
    conditions = [each["type"] for each in live.find(LLM[1], "chat")["status"]["conditions"]]
    assert conditions == ["Ready", "RouterReady", "MainWorkloadReady", "ModelUnpinned"]
    live.remove(LLM[1], "chat")
    eventually(lambda: live.find(LLM[1], "chat") is None)
    assert live.find("Deployment", "chat-engine") is None


def test_an_inference_graph_becomes_a_router_that_follows_its_document(
    live: LiveCluster, start: Callable[[], Running]
) -> None:
    def status() -> Json:
        return live.find(GRAPH[1], "flowers").get("status") or {}

    live._store(copy.deepcopy(FLOWERS), "ADDED")
    start()
    eventually(lambda: live.find("Deployment", "flowers-router") and status().get("observedGeneration") == 1)
    assert [each["type"] for each in status()["conditions"]] == ["Ready", "IngressReady", "RouterReady"]
    assert status()["address"] == {"url": "http://flowers.models.svc.cluster.local"}
    assert not status().keys() & {"components", "modelStatus"}
    live.edit(GRAPH[1], "flowers", {"spec": {"maxReplicas": 5}})
    eventually(lambda: live.find("HorizontalPodAutoscaler", "flowers-router")["spec"]["maxReplicas"] == 5)
    nowhere = {"root": {"routerType": "Sequence", "steps": [{"nodeName": "nowhere"}]}}
    live.edit(GRAPH[1], "flowers", {"spec": {"nodes": nowhere}})
    eventually(lambda: status()["conditions"][0]["reason"] == "InvalidSpec")
    assert "models/flowers: error PL104: spec.nodes.root.steps[0].nodeName" in status()["conditions"][0]["message"]
    assert live.find("Deployment", "flowers-router"), "the release before serves on"
    live.remove(GRAPH[1], "flowers")
    eventually(lambda: live.find(GRAPH[1], "flowers") is None)
    assert [each["kind"] for each in live.objects if each["kind"] not in ("Event", "Namespace")] == []


def test_an_invalid_document_is_refused_at_admission(live: LiveCluster) -> None:
    operator, invalid = Operator(KubeConnection(live.api), SETTINGS), iris(minReplicas="many")

    def admit(document: Json, old: Json = None) -> list[str]:
        warnings: list[str] = []
        asyncio.run(operator._validate(document, old, warnings))
        return warnings

    with pytest.raises(kopf.AdmissionError, match=r"models/iris: error PL102: spec\.predictor\.minReplicas"):
        admit(invalid)
    # One that was stored before the webhook was there can be labelled and deleted.
    labelled = {**invalid, "metadata": {**invalid["metadata"], "labels": {"team": "vision"}}}
    assert admit(labelled, invalid) == []
    assert admit({**invalid, "metadata": {**invalid["metadata"], "deletionTimestamp": "now"}}, iris()) == []
    assert all("warning PL" in text for text in admit(IRIS))
    # What cannot be judged is let through, as without a webhook: here a release that was planned with nonsense.
    live._store(
        {
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
            "data": {"document": json.dumps(annotated(IRIS, **{"planned-with": "?"})), "manifests": [], "at": ""},
            "metadata": {
                "name": "forged", "namespace": "models",
                "labels": {"pilotlight.dev/service": "iris", "pilotlight.dev/release": "1"},
            },
        },
        "ADDED",
    )  # fmt: skip
    operator.cluster.fill(("models",))
    assert admit(iris(maxReplicas=4)) == []


def test_one_controller_leads_and_gives_the_lease_up(live: LiveCluster) -> None:
    settings = ControllerSettings((KIND,), ("models",), lease_namespace="system")
    lost: list[str] = []
    leader = Leadership(live.cluster(), settings, lambda: lost.append("lost"))
    leader.acquire()
    lease = live.find("Lease", LEASE_NAME)
    assert lease["metadata"]["annotations"][ANNOTATION_NAMESPACES] == "models"
    assert lease["spec"]["leaseDurationSeconds"] == 15
    unreachable = client.CoordinationV1Api(
        client.ApiClient(client.Configuration(host="http://127.0.0.1:1", retries=False))
    )
    reachable, leader._lock.api_instance = leader._lock.api_instance, unreachable
    assert leader._lock.get(LEASE_NAME, "system")[0] is False  # tried again until the deadline, instead of an exception
    leader._lock.api_instance = reachable
    leader.release()
    assert live.find("Lease", LEASE_NAME)["spec"].get("holderIdentity") is None
    assert lost == []
