"""Both charts on a real cluster: installed, asked, upgraded, taken back, and gone without a trace."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.conftest import Run
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.real_helm import MODEL, SMALL, Helm, find_helm, left_behind

SIMPLE = {"model": {"storageUri": MODEL}, "resources": SMALL}
RAW = {**SIMPLE, "mode": "raw", "replicas": {"max": 1}}

# Three ways to install the same service: simply, by a plan's values, by platformctl with helm.
DOCUMENT = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "planned", "annotations": {"serving.kserve.io/deploymentMode": "Standard"}},
    "spec": {
        "predictor": {
            "minReplicas": 1,
            "maxReplicas": 1,
            "model": {"modelFormat": {"name": "onnx"}, "storageUri": MODEL, "resources": SMALL},
        }
    },
}


@pytest.fixture(scope="module")
def helm(cluster: Cluster, namespace: str) -> Helm:
    return find_helm(cluster, namespace)


@pytest.fixture
def released(helm: Helm) -> Iterator[list[str]]:
    """Names of releases that are gone after the test, whatever became of it."""
    names: list[str] = []
    yield names
    for name in names:
        helm.run("uninstall", name, "--ignore-not-found", "--wait")


def gone(cluster: Cluster, namespace: str, service: str) -> bool:
    return not left_behind(cluster, f"pilotlight.dev/service={service}", "-n", namespace)


def revision(cluster: Cluster, namespace: str, service: str) -> str:
    found = cluster.get("-n", namespace, "ksvc", service)
    return str(found["status"].get("latestReadyRevisionName", ""))


def test_a_model_alone_is_a_service_that_answers_is_changed_and_taken_back(
    helm: Helm, cluster: Cluster, namespace: str, released: list[str]
) -> None:
    released.append("iris")
    helm.install("iris", "inference-service", SIMPLE)
    assert "Succeeded" in helm("test", "iris")
    reply = cluster.ask(f"iris.{namespace}.{cluster.domain}", "/v2/models/iris")
    assert (reply.status, reply.json()["name"]) == (200, "iris")
    first = revision(cluster, namespace, "iris")

    helm.upgrade("iris", "inference-service", {**SIMPLE, "scaling": {"concurrency": 3}})
    seconds_until(lambda: revision(cluster, namespace, "iris") != first, "the second revision is ready")
    helm("rollback", "iris")
    seconds_until(lambda: revision(cluster, namespace, "iris") not in (first, ""), "the first state is ready again")
    assert "Succeeded" in helm("test", "iris")
    helm("uninstall", "iris", "--wait")
    seconds_until(lambda: gone(cluster, namespace, "iris"), "nothing of iris is left")
    assert not left_behind(cluster, "owner=helm,name=iris", "-n", namespace)


def test_a_raw_service_is_changed_and_taken_back(
    helm: Helm, cluster: Cluster, namespace: str, released: list[str]
) -> None:
    released.append("plain")

    def pods() -> set[str]:
        found = cluster.get("-n", namespace, "pods", "-l", "pilotlight.dev/workload=plain")["items"]
        return {each["metadata"]["labels"]["pilotlight.dev/revision"] for each in found}

    helm.install("plain", "inference-service", RAW)
    assert "Succeeded" in helm("test", "plain", "--timeout", "2m")
    (first,) = pods()
    helm.upgrade("plain", "inference-service", {**RAW, "args": ["--log-format=text"]})
    seconds_until(lambda: bool(pods() - {first}), "a pod of the second revision is there")
    helm("rollback", "plain", "--wait")
    seconds_until(lambda: pods() == {first}, "only the first revision runs")
    helm("uninstall", "plain", "--wait")
    seconds_until(lambda: gone(cluster, namespace, "plain"), "nothing of plain is left")


CHANGES = (
    ("scale", "shown", "--min", "1", "--max", "2"), ("traffic", "shown", "--reset"), ("rollback", "shown"),
    ("canary", "promote", "shown"), ("delete", "shown"),
)  # fmt: skip


def test_what_helm_has_installed_platformctl_shows_and_leaves_to_helm(
    helm: Helm, cluster: Cluster, namespace: str, platformctl: Run, released: list[str]
) -> None:
    released.append("shown")
    helm.install("shown", "inference-service", RAW)
    helm("test", "shown", "--timeout", "2m")
    told = platformctl("status", "shown", "-o", "json")
    assert told.returncode == 0, told.stderr
    status = json.loads(told.stdout)
    assert (status["phase"], status["revisions"][0]["model_state"]) == ("Ready", "Loaded")
    assert "shown" in platformctl("list", "-o", "name").stdout
    before = cluster.get("-n", namespace, "deployment", "shown")["metadata"]["generation"]
    for words in CHANGES:
        refused = platformctl(*words)
        assert refused.returncode == 2, (words, refused.stderr)
        assert f"shown -n {namespace}" in refused.stderr, words
    assert cluster.get("-n", namespace, "deployment", "shown")["metadata"]["generation"] == before


@pytest.fixture
def helm_on_path(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(helm.program).parent), os.environ["PATH"])))


@pytest.mark.usefixtures("helm_on_path")
def test_a_deploy_with_helm_waits_as_any_other_and_helm_owns_what_it_made(
    helm: Helm, cluster: Cluster, namespace: str, platformctl: Run, released: list[str]
) -> None:
    released.append("planned")
    text = json.dumps(DOCUMENT)
    done = platformctl("deploy", "-f", "-", "--with", "helm", text=text)
    assert done.returncode == 0, done.stderr
    assert "Ready" in done.stderr
    refused = platformctl("deploy", "-f", "-", "--set", "spec.predictor.maxReplicas=2", text=text)
    assert (refused.returncode, "--with helm" in refused.stderr) == (2, True), refused.stderr
    changed = platformctl("deploy", "-f", "-", "--with", "helm", "--set", "spec.predictor.maxReplicas=2", text=text)
    assert changed.returncode == 0, changed.stderr
    assert json.loads(helm("history", "planned", "-o", "json"))[-1]["revision"] == 2
    helm("uninstall", "planned", "--wait")
    seconds_until(lambda: gone(cluster, namespace, "planned"), "nothing of planned is left")


@pytest.mark.usefixtures("helm_on_path")
def test_what_platformctl_has_deployed_helm_does_not_take_over(
    cluster: Cluster, namespace: str, platformctl: Run
) -> None:
    text = json.dumps({**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "name": "ours"}})
    assert platformctl("deploy", "-f", "-", "--no-wait", text=text).returncode == 0
    refused = platformctl("deploy", "-f", "-", "--with", "helm", text=text)
    assert refused.returncode == 1
    assert "invalid ownership metadata" in refused.stderr
    assert "platformctl delete ours" in refused.stderr
    assert platformctl("delete", "ours").returncode == 0
    seconds_until(lambda: gone(cluster, namespace, "ours"), "nothing of ours is left")


def test_the_platform_is_installed_asked_changed_taken_back_and_gone(
    helm: Helm, cluster: Cluster, released: list[str]
) -> None:
    released.append("platform")
    values = {
        "gateway": {"name": "helm-test-gateway", "replicas": 1, "terminationGracePeriodSeconds": 30},
        "roles": {"deployer": "helm-test-deployer", "viewer": "helm-test-viewer"},
    }

    def aggregated() -> bool:
        labels = cluster.get("clusterrole", "helm-test-viewer")["metadata"]["labels"]
        return "rbac.authorization.k8s.io/aggregate-to-view" in labels

    helm.install("platform", "inference-platform", values)
    assert "Succeeded" in helm("test", "platform", "--timeout", "2m")
    helm.upgrade("platform", "inference-platform", {**values, "roles": {**values["roles"], "aggregate": True}})
    assert aggregated()
    helm("rollback", "platform")
    assert not aggregated()
    helm("uninstall", "platform", "--wait")
    labels = "app.kubernetes.io/name=inference-platform,app.kubernetes.io/instance=platform"
    seconds_until(lambda: not left_behind(cluster, labels, "-A"), "nothing of the platform is left")
