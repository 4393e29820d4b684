"""Canaries of documents with `spec.canary`, from `kubectl apply` alone: the controller judges and drives them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controller_process import KIND, Controller, our_kinds, running
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.requests import Asker, failures, steady
from tests.cluster.scenarios import Story, document

Json = Any
MODES = {"Serverless": "hpa", "Standard": "keda"}
# Bounds that a busy machine does not cross, and that requests which wait for a batch do.
POLICY = """
  canary:
    steps: 30,100
    bake: 6s
    interval: 2s
    min-requests: 20
    keep-stable: 2s
    check: [error_rate<25%, p50_ms<500]
"""


@pytest.fixture(scope="module")
def kinds(cluster: Cluster) -> Iterator[None]:
    with our_kinds(cluster):
        yield


@pytest.fixture
def controller(kinds: None, cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Controller]:
    with running(cluster, namespace, tmp_path / "controller.log") as process:
        yield process


class Applied(Story):
    """One service that is changed by kubectl and nothing else."""

    def apply(self, mode: str, memory: str = "512Mi", *, late: bool = False) -> None:
        text = document(self.name, mode=mode, scaler=MODES[mode], least=1, most=2, memory=memory) + POLICY
        waits = "    batcher: {maxBatchSize: 32, maxLatency: 2000}\n"
        text = text.replace("    minReplicas", f"{waits}    minReplicas") if late else text
        self.cluster.kubectl("-n", self.namespace, "apply", "-f", "-", text=text)

    def object(self) -> Json:
        return self.cluster.get("-n", self.namespace, KIND, self.name)

    def ready(self) -> Json:
        conditions = (self.object().get("status") or {}).get("conditions") or [{}]
        return next((each for each in conditions if each.get("type") == "Ready"), {})

    def traffic(self) -> dict[str, int]:
        shares = self.object()["status"]["components"]["predictor"].get("traffic") or ()
        return {each["revisionName"]: each["percent"] for each in shares if each["percent"]}

    def canary(self) -> Json:
        done = self.run("canary", "status", self.name, "-o", "json")
        return json.loads(done.stdout).get("canary") or {} if done.returncode == 0 else {}

    def reasons(self) -> set[str]:
        """Of the events of its document and its workloads: those of a canary are about the workload."""
        found = self.cluster.get("events", "-n", self.namespace)["items"]
        return {each["reason"] for each in found if each["involvedObject"]["name"].startswith(self.name)}


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_document_is_rolled_back_and_a_good_one_promoted(
    mode: str, controller: Controller, cluster: Cluster, namespace: str
) -> None:
    service = Applied(cluster, namespace, f"iris-{mode.lower()}")
    service.apply(mode)
    seconds_until(lambda: service.ready().get("status") == "True", "it serves")
    (stable,) = service.traffic()
    base = cluster.ingress if mode == "Serverless" else cluster.gateway
    with steady(base, service.object()["status"]["url"].removeprefix("http://"), service.name, clients=3) as askers:
        _answer(askers)
        service.apply(mode, late=True)
        seconds_until(lambda: service.ready().get("reason") == "CanaryRolledBack", "the bad one is rolled back", 240)
        assert "p50_ms" in service.ready()["message"]
        seconds_until(lambda: service.traffic() == {stable: 100}, "everything leads back")
        assert service.canary()["phase"] == "RolledBack"

        service.apply(mode, memory="640Mi")
        seconds_until(lambda: service.canary().get("weight", 0) >= 30, "the good one has its first share")
        controller.kill()
        controller.start()
        seconds_until(lambda: service.canary().get("phase") == "Promoted", "another controller promotes it", 240)
        promoted = service.canary()["revision"]
        seconds_until(lambda: service.traffic() == {promoted: 100}, "everything leads on")
        seconds_until(lambda: service.ready().get("status") == "True", "it is ready")
    assert failures(askers) == []
    assert promoted != stable
    assert {"CanaryRolledBack", "CanaryPromoted"} <= service.reasons()


def _answer(askers: list[Asker]) -> None:
    seconds_until(lambda: all(asker.answered > 5 for asker in askers), "answers")
