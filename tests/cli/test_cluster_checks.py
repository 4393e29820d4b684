"""`doctor --target kubernetes`: what it finds on clusters that have everything, nothing, and no rights."""

import socket
from typing import Any

import pytest
from tests.platform.targets.kubernetes.fake_cluster import (
    GATEWAY,
    KEDA,
    KNATIVE,
    PLAIN,
    PROMETHEUS,
    PaperCluster,
    named,
)

from platformctl.doctor.cluster_checks import findings
from platformctl.doctor.local_checks import Finding

FEATURES = named(
    "v1", "ConfigMap", "knative-serving", "config-features",
    metadata={"labels": {"app.kubernetes.io/version": "1.15.2"}}, data={"kubernetes.podspec-affinity": "enabled"},
)  # fmt: skip
NETWORK = named(
    "v1", "ConfigMap", "knative-serving", "config-network", data={"ingress-class": "kourier.ingress.networking.dev"}
)
OURS = named(
    "apps/v1",
    "Deployment",
    "pilotlight-system",
    "pilotlight-gateway",
    spec={
        "replicas": 2,
        "template": {"spec": {"containers": [{"image": "registry.example.com/pilotlight/predictor:0.1.0"}]}},
    },
    status={"readyReplicas": 2},
)
PARENT = named(
    "gateway.networking.k8s.io/v1", "Gateway", "pilotlight-system", "pilotlight",
    status={"conditions": [{"type": "Programmed", "status": "True"}]},
)  # fmt: skip
NODE = named("v1", "Node", "", "a", status={"allocatable": {"nvidia.com/gpu": "4"}})
PROMETHEUS_SERVICE = named("v1", "Service", "monitoring", "prometheus", spec={"ports": [{"port": 9090}]})


def operator(version: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "keda-operator", "app.kubernetes.io/version": version}
    spec = {"template": {"spec": {"containers": [{"image": "keda"}]}}}
    return named("apps/v1", "Deployment", "keda", "keda-operator", metadata={"labels": labels}, spec=spec)


MODELS = named("v1", "Namespace", "", "models")


def kourier(port: int) -> dict[str, Any]:
    spec = {"clusterIP": "127.0.0.1", "ports": [{"name": "http2", "port": port}]}
    return named("v1", "Service", "kourier-system", "kourier", spec=spec)


def found(paper: PaperCluster) -> dict[str, Finding]:
    return {each.check: each for each in findings(paper.cluster(), "models")}


def test_a_cluster_with_everything_is_well() -> None:
    pod = named(
        "v1", "Pod", "models", "iris-1", metadata={"labels": {"pilotlight.dev/service": "iris"}},
        spec={"nodeName": "a", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        status={"conditions": [{"type": "Ready", "status": "True"}]},
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ingress = kourier(listening.getsockname()[1])
        objects = (FEATURES, NETWORK, operator("2.21.0"), OURS, PARENT, NODE, PROMETHEUS_SERVICE, ingress, pod, MODELS)
        with PaperCluster(*objects, kinds=PLAIN + KNATIVE + KEDA + GATEWAY + PROMETHEUS) as paper:
            query = "count(count by (instance) (pilotlight_model_state))"
            result = [{"metric": {}, "value": [0, "1"]}]
            paper.queries = {query: {"status": "success", "data": {"resultType": "vector", "result": result}}}
            told = found(paper)
    assert {each.level for each in told.values()} == {"ok"}
    assert "Kubernetes 1.34.4" in told["cluster"].message
    assert told["knative"].message == "1.15.2; flags for pods: affinity"
    assert told["image"].message == "registry.example.com/pilotlight/predictor:0.1.0, its variants beside it"
    assert told["keda"].message == "2.21.0"
    assert told["gateway"].message == "2 of 2 replicas of pilotlight-gateway are ready"
    assert told["metrics"].message == "prometheus answers; 1 pod of a service is ready, and it has metrics of 1"
    assert told["gpus"].message == "1 of 1 nodes have some; 3 are free"


def test_a_bare_cluster_is_told_what_each_part_would_bring() -> None:
    with PaperCluster() as paper:
        told = found(paper)
    assert {name for name, each in told.items() if each.level == "warn"} == {
        "image", "knative", "keda", "gateway", "gateway api", "prometheus operator", "metrics", "namespace",
    }  # fmt: skip
    assert not [name for name, each in told.items() if each.level == "fail"]
    assert all(each.fix for each in told.values() if each.level != "ok")


def test_an_image_without_a_registry_must_be_on_every_node() -> None:
    images = {"status": {"images": [{"names": ["docker.io/pilotlight/predictor:0.1.0"]}]}}
    having, lacking = named("v1", "Node", "", "a", **images), named("v1", "Node", "", "b", status={})
    with PaperCluster(having) as paper:
        assert found(paper)["image"].message == "pilotlight/predictor:0.1.0 is on every node"
    with PaperCluster(having, lacking) as paper:
        told = found(paper)["image"]
        (told_by_flag,) = [each for each in findings(paper.cluster(), "models", "dev.local") if each.check == "image"]
    assert told.message == "1 of 2 nodes have pilotlight/predictor:0.1.0, which is in no public registry"
    assert "--image-registry" in told.fix
    assert (told_by_flag.level, told_by_flag.message) == (
        "ok", "dev.local/pilotlight/predictor:0.1.0, its variants beside it",
    )  # fmt: skip


@pytest.mark.parametrize(("skipped", "level"), [("dev.local,index.docker.io", "ok"), ("dev.local", "warn")])
def test_a_loaded_image_whose_tag_knative_looks_up_is_a_warning(skipped: str, level: str) -> None:
    node = named("v1", "Node", "", "a", status={"images": [{"names": ["docker.io/pilotlight/predictor:0.1.0"]}]})
    data = {"registries-skipping-tag-resolving": skipped}
    settings = named("v1", "ConfigMap", "knative-serving", "config-deployment", data=data)
    with PaperCluster(node, settings, kinds=PLAIN + KNATIVE) as paper:
        image = found(paper)["image"]
    assert image.level == level
    assert ("--image-registry dev.local" in image.fix) == (level == "warn")


def test_an_old_keda_a_gateway_that_is_down_and_missing_rights_are_failures() -> None:
    down = {**OURS, "status": {}}
    objects = (operator("2.17.1"), down)
    with PaperCluster(*objects, kinds=PLAIN + KEDA, denied=("deployments",)) as paper:
        told = found(paper)
    failed = {name: each.message for name, each in told.items() if each.level == "fail"}
    assert failed == {
        "keda": "2.17.1 has no fallback for Value metrics",
        "gateway": "0 of 2 replicas of pilotlight-gateway are ready",
        "rights": "in models: no create, patch, delete of deployments.apps",
    }
    assert "kubectl create rolebinding pilotlight-deployer" in told["rights"].fix


def test_what_may_not_be_looked_at_is_a_warning_and_the_rest_goes_on() -> None:
    with PaperCluster(kinds=PLAIN + KEDA + KNATIVE, forbidden=("nodes", "deployments", "configmaps")) as paper:
        told = found(paper)
    assert told["gpus"].level == told["gateway"].level == "warn"
    assert told["gpus"].message.startswith("no right to look")
    assert told["knative"].message == "installed; its version and its flags are not to be seen"
    assert told["keda"].level == "ok"
    assert told["rights"].level == "ok"


def test_metrics_that_do_not_arrive_are_noticed() -> None:
    labels = {"pilotlight.dev/service": "iris"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pod = named("v1", "Pod", "models", "iris-1", metadata={"labels": labels}, spec={"containers": []}, status=ready)
    with PaperCluster(pod, PROMETHEUS_SERVICE) as paper:
        told = found(paper)["metrics"]
    assert (told.level, told.message) == (
        "warn", "1 pod of a service is ready, and prometheus has no metrics of it",
    )  # fmt: skip


def test_a_cluster_that_does_not_answer_ends_the_checks_at_once() -> None:
    with PaperCluster() as paper:
        cluster = paper.cluster()
    [told] = findings(cluster, "models")
    assert (told.level, told.check) == ("fail", "cluster")
    assert "--context NAME" in told.fix


def test_without_a_kubeconfig_doctor_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from pilotlight.errors import NotFound
    from pilotlight.targets.kubernetes.client import connect

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NotFound, match="no cluster is configured"):
        connect()
    with pytest.raises(NotFound, match="context other"):
        connect("other")
