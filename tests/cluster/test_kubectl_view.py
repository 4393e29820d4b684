"""What those see who know kubectl and not us: services as InferenceServices; the cluster's own runtimes are used."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.conftest import Run
from tests.cluster.real_cluster import Cluster, seconds_until
from tests.cluster.real_helm import MODEL, SMALL, Helm, find_helm, left_behind

KINDS = ("inferenceservices.ome.io", "inferenceservices.serving.kserve.io")
SERVICE = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "seen", "annotations": {"serving.kserve.io/deploymentMode": "Standard"}},
    "spec": {
        "predictor": {
            "minReplicas": 1,
            "maxReplicas": 1,
            "model": {"modelFormat": {"name": "onnx"}, "storageUri": MODEL, "resources": SMALL},
        }
    },
}
FLOWERS = {
    "apiVersion": "ome.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "flowers"},
    "spec": {
        "model": {"name": "iris", "kind": "BaseModel"},
        "engine": {"minReplicas": 1, "maxReplicas": 1, "runner": {"name": "ome-container", "resources": SMALL}},
    },
}
PLATFORM = {
    "crds": {"install": True, "groups": ["ome.io", "serving.kserve.io"], "keep": False},
    "gateway": {"enabled": False},
    "roles": {"deployer": "kubectl-view-deployer", "viewer": "kubectl-view-viewer"},
}


@pytest.fixture(scope="module")
def helm(cluster: Cluster, namespace: str) -> Helm:
    return find_helm(cluster, namespace)


@pytest.fixture(scope="module")
def platform(helm: Helm, cluster: Cluster, namespace: str) -> Iterator[str]:
    """A release of the platform chart with the kinds, and one who may deploy; both gone at the end."""
    if any(cluster.get("crd", kind) for kind in KINDS):
        pytest.skip("this cluster has InferenceServices of somebody else")
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "science")
    subject = {"kind": "ServiceAccount", "name": "science", "namespace": namespace}
    try:
        helm.install("platform", "inference-platform", {**PLATFORM, "namespaces": [namespace], "deployers": [subject]})
        for kind in KINDS:
            seconds_until(lambda kind=kind: served(cluster, kind), f"{kind} is served")
        yield "platform"
    finally:
        helm.run("uninstall", "platform", "--ignore-not-found", "--wait")


def served(cluster: Cluster, kind: str) -> bool:
    conditions = (cluster.get("crd", kind).get("status") or {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)


@pytest.fixture
def deployed(platform: str, platformctl: Run) -> Iterator[str]:
    done = platformctl("deploy", "-f", "-", text=json.dumps(SERVICE))
    assert done.returncode == 0, done.stderr
    yield "seen"
    platformctl("delete", "seen")


def kept(cluster: Cluster, namespace: str) -> Any:
    return cluster.get("-n", namespace, "inferenceservices.serving.kserve.io", "seen")


def test_a_deployed_document_is_there_with_its_status(deployed: str, cluster: Cluster, namespace: str) -> None:
    found = kept(cluster, namespace)
    assert found["spec"]["predictor"]["model"]["storageUri"] == MODEL
    status = found["status"]
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"
    assert status["url"]
    assert status["address"]["url"] == f"http://seen.{namespace}.svc.cluster.local"
    (share,) = status["components"]["predictor"]["traffic"]
    assert (share["percent"], share["latestRevision"]) == (100, True)
    assert share["revisionName"] == status["components"]["predictor"]["latestReadyRevision"]
    assert status["modelStatus"]["transitionStatus"] == "UpToDate"
    assert status["modelStatus"]["modelCopies"]["totalCopies"] == 1


def test_kubectl_shows_it_in_a_line_and_its_logs_by_label(deployed: str, cluster: Cluster, namespace: str) -> None:
    heading, line = cluster.kubectl("-n", namespace, "get", KINDS[1], "seen").splitlines()
    assert heading.split() == ["NAME", "URL", "READY", "MODE", "AGE"]
    assert line.split()[2:4] == ["True", "raw"]
    by_label = ("-n", namespace, "-l", "serving.kserve.io/inferenceservice=seen")
    cluster.kubectl("logs", *by_label)
    (pod,) = cluster.get("pods", *by_label)["items"]
    assert pod["status"]["phase"] == "Running"


def test_what_changes_is_told_there_when_somebody_looks(
    deployed: str, platformctl: Run, cluster: Cluster, namespace: str
) -> None:
    cluster.kubectl("-n", namespace, "scale", "deployment/seen-predictor", "--replicas=0")
    seconds_until(
        lambda: not cluster.get("-n", namespace, "deployment", "seen-predictor")["status"].get("readyReplicas"),
        "no replica is left",
    )
    assert platformctl("status", "seen").returncode == 0
    assert kept(cluster, namespace)["status"]["modelStatus"]["modelCopies"]["totalCopies"] == 0


def test_a_deleted_service_leaves_no_object(deployed: str, platformctl: Run, cluster: Cluster, namespace: str) -> None:
    assert platformctl("delete", "seen").returncode == 0
    seconds_until(lambda: not left_behind(cluster, "pilotlight.dev/service=seen", "-n", namespace), "nothing is left")


def test_whoever_has_the_role_of_a_deployer_can_deploy_look_and_delete(
    platform: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    theirs = as_account(cluster, namespace, "science", tmp_path / "kubeconfig")
    done = theirs.platformctl(namespace, "deploy", "-f", "-", text=json.dumps(SERVICE))
    assert done.returncode == 0, done.stderr
    assert theirs.platformctl(namespace, "status", "seen").returncode == 0
    assert theirs.platformctl(namespace, "delete", "seen").returncode == 0


def as_account(cluster: Cluster, namespace: str, name: str, file: Path) -> Cluster:
    """The same cluster with the rights of a ServiceAccount and no others."""
    token = cluster.kubectl("-n", namespace, "create", "token", name).strip()
    file.write_text(cluster.kubectl("config", "view", "--raw", "--minify", "--flatten"))
    for words in (("set-credentials", name, f"--token={token}"), ("set-context", "--current", f"--user={name}")):
        cluster.kubectl("config", *words, f"--kubeconfig={file}")
    return replace(cluster, kubeconfig=file)


def test_a_runtime_of_the_cluster_is_chosen_and_explained(
    platform: str, platformctl: Run, cluster: Cluster, namespace: str
) -> None:
    runtime = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": "house", "namespace": namespace},
        "spec": {
            "supportedModelFormats": [{"name": "onnx", "autoSelect": True, "priority": 9}],
            "containers": [{"name": "kserve-container", "image": "house/server:1"}],
        },
    }
    cluster.apply(runtime)
    try:
        done = platformctl("explain", "-f", "-", "--runtime", "-o", "json", text=json.dumps(SERVICE))
        assert done.returncode == 0, done.stderr
        (service,) = json.loads(done.stdout)["services"]
        (taken,) = [each for each in service["candidates"] if each["taken"]]
        assert taken["origin"] == f"cluster: ServingRuntime {namespace}/house"
    finally:
        cluster.kubectl("-n", namespace, "delete", "servingruntimes.serving.kserve.io", "house")


def test_a_model_of_the_cluster_is_served_and_seen_as_users_of_ome_look_for_it(
    platform: str, platformctl: Run, cluster: Cluster, namespace: str
) -> None:
    spec = {"modelFormat": {"name": "onnx"}, "storage": {"storageUri": MODEL}}
    model = {"apiVersion": "ome.io/v1beta1", "kind": "BaseModel", "metadata": {"name": "iris"}, "spec": spec}
    cluster.apply(model, namespace=namespace)
    told = platformctl("explain", "-f", "-", text=json.dumps(FLOWERS))
    assert f"from cluster: BaseModel {namespace}/iris" in told.stdout, told.stderr
    done = platformctl("deploy", "-f", "-", text=json.dumps(FLOWERS))
    assert done.returncode == 0, done.stderr
    found = cluster.get("-n", namespace, "inferenceservice", "flowers")
    assert found["apiVersion"] == "ome.io/v1beta1"
    assert found["status"]["modelStatus"]["transitionStatus"] == "UpToDate"
    by_label = ("-n", namespace, "-l", "serving.ome.io/inferenceservice=flowers", "-c", "ome-container")
    assert "model.loaded" in cluster.kubectl("logs", *by_label)
    assert cluster.get("-n", namespace, "basemodel", "iris")["spec"] == spec, "it is read, and never written"
    assert platformctl("delete", "flowers").returncode == 0


def test_an_uninstall_of_the_platform_leaves_nothing(platform: str, helm: Helm, cluster: Cluster) -> None:
    helm("uninstall", "platform", "--wait")
    labels = "app.kubernetes.io/name=inference-platform,app.kubernetes.io/instance=platform"
    seconds_until(lambda: not left_behind(cluster, labels, "-A"), "nothing of the platform is left")
    assert not any(cluster.get("crd", kind) for kind in KINDS)


def test_where_another_controller_has_the_kind_no_object_is_made_and_that_is_said(
    platformctl: Run, cluster: Cluster, namespace: str
) -> None:
    if cluster.get("crd", KINDS[1]):
        pytest.skip("this cluster has InferenceServices already")
    cluster.apply(foreign_kind())
    try:
        seconds_until(lambda: served(cluster, KINDS[1]), "the kind is served")
        done = platformctl("deploy", "-f", "-", text=json.dumps(SERVICE))
        assert done.returncode == 0, done.stderr
        assert "is managed by another controller" in done.stderr
        assert kept(cluster, namespace) is None
        assert platformctl("delete", "seen").returncode == 0
    finally:
        cluster.kubectl("delete", "crd", KINDS[1])


def foreign_kind() -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "inferenceservices", "singular": "inferenceservice", "kind": "InferenceService"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": KINDS[1]},
        "spec": {"group": "serving.kserve.io", "names": names, "scope": "Namespaced", "versions": [version]},
    }
