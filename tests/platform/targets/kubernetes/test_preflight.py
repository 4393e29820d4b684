"""Before anything is written: what manifests need and a cluster does not have, all at once, each with its fix."""

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

from pilotlight.targets.kubernetes import preflight
from pilotlight.targets.kubernetes.preflight import drop_unknown_optional, missing

HOME = named("v1", "Namespace", "", "default")
ACCOUNT = named("v1", "ServiceAccount", "default", "iris")
EVERYTHING = PLAIN + KNATIVE + KEDA + GATEWAY + PROMETHEUS


def deployment(**spec: Any) -> dict[str, Any]:
    pod = {"serviceAccountName": "iris", "containers": [{"name": "main"}], **spec}
    return named("apps/v1", "Deployment", "default", "iris-predictor", spec={"template": {"spec": pod}})


def knative(**spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "main"}], **spec}
    return named("serving.knative.dev/v1", "Service", "default", "iris-predictor", spec={"template": {"spec": pod}})


def flags(**data: str) -> dict[str, Any]:
    return named("v1", "ConfigMap", "knative-serving", "config-features", data={"multi-container": "enabled", **data})


def scaled(trigger: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return named("keda.sh/v1alpha1", "ScaledObject", "default", "iris-predictor", spec={"triggers": [trigger], **spec})


def route(parent: dict[str, str]) -> dict[str, Any]:
    return named("gateway.networking.k8s.io/v1", "HTTPRoute", "default", "iris", spec={"parentRefs": [parent]})


def found(*manifests: dict[str, Any], there: tuple[dict[str, Any], ...] = (), **how: Any) -> list[str]:
    with PaperCluster(HOME, *there, **{"kinds": EVERYTHING, **how}) as paper:
        return missing(paper.cluster(), manifests)


def test_a_cluster_that_has_everything_lacks_nothing() -> None:
    assert found(ACCOUNT, deployment()) == []


def test_a_cluster_without_the_inference_extension_is_named_with_the_fix() -> None:
    (told,) = found(
        {"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "iris"}}
    )
    assert "InferencePool of inference.networking.k8s.io/v1 is not installed in this cluster" in told
    assert "or set routing_strategy to prefix_aware" in told


def test_everything_that_is_missing_is_told_at_once() -> None:
    trigger = {"type": "external-push", "metadata": {"scalerAddress": "pilotlight-gateway.pilotlight-system.svc:9090"}}
    told = found(scaled(trigger), deployment(imagePullSecrets=[{"name": "pull"}]), knative(), kinds=PLAIN)
    assert len(told) == 5
    assert "ScaledObject of keda.sh/v1alpha1 is not installed in this cluster: install KEDA" in told[0]
    assert "Service of serving.knative.dev/v1 is not installed in this cluster: install Knative Serving" in told[1]
    assert "pilotlight-gateway.pilotlight-system.svc:9090 has no Service" in told[2]
    assert "refers to the ServiceAccount iris, which default does not have" in told[3]
    assert "refers to the Secret pull" in told[4]


def test_another_version_of_a_kind_is_told_apart_from_none() -> None:
    kinds = (*PLAIN, "gateway.networking.k8s.io/v1beta1/HTTPRoute")
    [told] = found(route({"name": "edge"}), kinds=kinds)
    assert "it serves gateway.networking.k8s.io/v1beta1" in told


def test_a_namespace_that_is_not_there_or_going_is_named() -> None:
    elsewhere = named("v1", "ServiceAccount", "nowhere", "iris")
    going = named("v1", "Namespace", "", "going", status={"phase": "Terminating"})
    leaving = named("v1", "ServiceAccount", "going", "iris")
    told = found(elsewhere, leaving, there=(going,))
    assert told[0] == "the namespace nowhere does not exist: kubectl create namespace nowhere"
    assert "the namespace going is being deleted" in told[1]


def test_a_flag_of_knative_that_is_off_comes_with_the_command_that_sets_it() -> None:
    [told] = found(knative(nodeSelector={"gpu": "yes"}), there=(flags(),))
    assert "Knative's flag kubernetes.podspec-nodeselector is off and Service iris-predictor has nodeSelector" in told
    assert '\'{"data":{"kubernetes.podspec-nodeselector":"enabled"}}\'' in told
    on = {"kubernetes.podspec-nodeselector": "enabled"}
    assert found(knative(nodeSelector={"gpu": "yes"}), there=(flags(**on),)) == []


def test_flags_that_may_not_be_seen_are_not_judged() -> None:
    assert found(knative(nodeSelector={"gpu": "yes"}), forbidden=("configmaps",)) == []


def test_a_timeout_beyond_knatives_limit_is_refused() -> None:
    [told] = found(knative(timeoutSeconds=900), there=(flags(),))
    assert "has timeoutSeconds 900, and Knative allows 600" in told
    limit = named("v1", "ConfigMap", "knative-serving", "config-defaults", data={"max-revision-timeout-seconds": "900"})
    assert found(knative(timeoutSeconds=900), there=(flags(), limit)) == []


@pytest.mark.parametrize(("version", "judged"), [("2.17.2", True), ("2.18.0", False), ("main", False)])
def test_a_keda_without_fallback_on_values_is_refused(version: str, judged: bool) -> None:
    labels = {"app.kubernetes.io/name": "keda-operator", "app.kubernetes.io/version": version}
    spec = {"template": {"spec": {"containers": [{"image": "keda:abc"}]}}}
    operator = named("apps/v1", "Deployment", "keda", "keda-operator", metadata={"labels": labels}, spec=spec)
    trigger = {"type": "prometheus", "metricType": "Value"}
    told = found(scaled(trigger, fallback={"replicas": 1}), there=(operator,))
    assert bool(told) is judged
    assert found(scaled(trigger), there=(operator,)) == []


def test_a_route_needs_its_gateway_and_its_consent() -> None:
    parent = {"name": "pilotlight", "namespace": "edge"}
    other = named("gateway.networking.k8s.io/v1", "Gateway", "edge", "public", spec={"listeners": [{}]})
    [told] = found(route(parent), there=(other,))
    assert "the Gateway edge/pilotlight, the parent of the route, does not exist: create it, or set an existing" in told
    assert told.endswith("routeParent in --capabilities (edge/public)")
    closed = named("gateway.networking.k8s.io/v1", "Gateway", "edge", "pilotlight", spec={"listeners": [{}]})
    [told] = found(route(parent), there=(closed,))
    assert "accepts routes of its own namespace only, not of default" in told
    listener = {"allowedRoutes": {"namespaces": {"from": "All"}}}
    opened = named("gateway.networking.k8s.io/v1", "Gateway", "edge", "pilotlight", spec={"listeners": [listener]})
    assert found(route(parent), there=(opened,)) == []


def test_gpus_that_no_node_has_are_named_unless_the_cluster_grows() -> None:
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    manifests = (ACCOUNT, deployment(containers=[{"name": "main", "resources": resources}]))
    node = named("v1", "Node", "", "a", status={"allocatable": {"cpu": "8"}})
    [told] = found(*manifests, there=(node,))
    assert "Deployment iris-predictor requests nvidia.com/gpu, which no node of this cluster has" in told
    with_one = named("v1", "Node", "", "b", status={"allocatable": {"nvidia.com/gpu": "4"}})
    assert found(*manifests, there=(node, with_one)) == []
    grows = named("v1", "ConfigMap", "kube-system", "cluster-autoscaler-status", data={})
    assert found(*manifests, there=(node, grows)) == []
    assert found(*manifests, forbidden=("nodes",)) == []


def test_a_pod_parks_only_where_nodes_share_their_gpus() -> None:
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    variable = {"env": [{"name": "INFERENCE_PARK_MEMORY", "value": "25%"}]}
    parks, plain = ((ACCOUNT, deployment(containers=[{"name": "main", **gpu, **env}])) for env in (variable, {}))
    allocatable = {"allocatable": {"nvidia.com/gpu": "4"}}
    node = named("v1", "Node", "", "a", status=allocatable)
    [told] = found(*parks, there=(node,))
    assert told == (
        "Deployment iris-predictor parks (pilotlight.dev/park), and no node has a GPU that pods share "
        "(nvidia.com/gpu.sharing-strategy): share GPUs by time-slicing or MPS in NVIDIA's device plugin, or remove the "
        "annotation"
    )
    assert found(*plain, there=(node,)) == []
    shares = named("v1", "Node", "", "b", status=allocatable)
    shares["metadata"]["labels"] = {"nvidia.com/gpu.sharing-strategy": "mps"}
    assert found(*parks, there=(node, shares)) == []
    without_gpu = deployment(containers=[{"name": "main", **variable}])
    assert found(ACCOUNT, without_gpu, there=(node,)) == []


def test_rights_that_are_lacking_are_told_by_resource() -> None:
    [told] = found(ACCOUNT, deployment(), denied=("deployments",))
    assert "you may not create or patch or delete deployments.apps in default" in told


def test_what_may_not_be_seen_is_taken_to_be_there() -> None:
    assert found(deployment(), forbidden=("serviceaccounts", "namespaces")) == []


def test_objects_that_only_watch_are_left_out_with_a_word() -> None:
    monitor = named("monitoring.coreos.com/v1", "PodMonitor", "default", "iris")
    with PaperCluster() as paper:
        kept, told = drop_unknown_optional(paper.cluster(), [ACCOUNT, monitor, monitor])
    assert kept == [ACCOUNT]
    assert told == [
        "the cluster has no PodMonitor, so none is created; for monitoring, install the Prometheus Operator"
        " (prometheus-operator.dev)"
    ]
    with PaperCluster(kinds=EVERYTHING) as paper:
        assert drop_unknown_optional(paper.cluster(), [ACCOUNT, monitor]) == ([ACCOUNT, monitor], [])


def test_pods_are_found_wherever_a_kind_keeps_them() -> None:
    pod = {"spec": {"containers": [{"name": "main"}]}}
    group = {"leaderWorkerTemplate": {"leaderTemplate": pod, "workerTemplate": pod}}
    ray = {"headGroupSpec": {"template": pod}, "workerGroupSpecs": [{"template": pod}]}
    documents = [named("a/v1", "K", "default", str(at), spec=spec) for at, spec in enumerate((group, ray, {}))]
    assert [each.owner for each in preflight.pod_templates(documents)] == ["K 0", "K 0", "K 1", "K 1"]


def test_everything_that_a_pod_mentions_is_found_and_what_is_optional_is_not() -> None:
    spec = {
        "volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "b", "secret": {"secretName": "s1"}},
            {"name": "c", "projected": {"sources": [{"configMap": {"name": "c1"}}, {"secret": {"name": "s2"}}]}},
            {"name": "d", "configMap": {"name": "c2", "optional": True}},
        ],
        "initContainers": [{"envFrom": [{"secretRef": {"name": "s3"}}]}],
        "containers": [
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c3", "key": "k"}}}, {"name": "Y"}]}
        ],
    }
    assert list(preflight.referenced_objects(spec)) == [
        ("PersistentVolumeClaim", "claim"), ("Secret", "s1"), ("ConfigMap", "c1"), ("Secret", "s2"), ("Secret", "s3"),
        ("ConfigMap", "c3"),
    ]  # fmt: skip
