"""What a cluster offers a plan: read from its kinds, ConfigMaps and Services; what may not be seen is left out."""

from dataclasses import fields
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

from pilotlight.plan.types import Capabilities
from pilotlight.release.plan_and_render import Sources, plan_all
from pilotlight.targets.kubernetes import capabilities
from pilotlight.targets.kubernetes.preflight import unknown_kinds

EXAMPLE = """
################################
# Indicates whether affinity is on
    kubernetes.podspec-affinity: "disabled"
    kubernetes.podspec-init-containers: "enabled"
    kubernetes.podspec-dryrun: "allowed"
"""
FEATURES = named(
    "v1", "ConfigMap", "knative-serving", "config-features",
    data={
        "_example": EXAMPLE, "kubernetes.podspec-affinity": "Enabled", "kubernetes.podspec-init-containers": "disabled",
    },
)  # fmt: skip
DOMAIN = named(
    "v1", "ConfigMap", "knative-serving", "config-domain",
    data={"_example": "example.com: |", "internal.example.org": "selector:\n  app: x\n", "cluster.test": ""},
)  # fmt: skip


def operator(version: str, image: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "keda-operator", "app.kubernetes.io/version": version}
    template = {"spec": {"containers": [{"image": image}]}}
    return named(
        "apps/v1", "Deployment", "keda", "keda-operator", metadata={"labels": labels}, spec={"template": template}
    )


def gateway(namespace: str, name: str) -> dict[str, Any]:
    return named("gateway.networking.k8s.io/v1", "Gateway", namespace, name)


def test_a_cluster_with_everything_says_so_in_the_plans_words() -> None:
    gateway_service = named("v1", "Service", "pilotlight-system", "pilotlight-gateway", spec={})
    prometheus = named("v1", "Service", "monitoring", "prometheus", spec={"ports": [{"port": 9090}]})
    objects = (FEATURES, DOMAIN, operator("2.21.0", ""), gateway("edge", "only"), gateway_service, prometheus)
    with PaperCluster(*objects, kinds=PLAIN + KNATIVE + KEDA + GATEWAY + PROMETHEUS) as paper:
        found = capabilities.discover(paper.cluster())
    assert found == {
        "knative": True, "default_mode": "serverless", "prometheus_operator": True, "leader_worker_set": False,
        "keda": "2.21.0",
        "features": frozenset({"kubernetes.podspec-affinity", "kubernetes.podspec-dryrun"}), "domain": "cluster.test",
        "gateway_api": True, "route_parent": {"name": "only", "namespace": "edge"}, "our_gateway": True,
        "gateway_scaler": "pilotlight-gateway.pilotlight-system.svc:9090", "http_add_on": False,
        "prometheus": "http://prometheus.monitoring.svc:9090", "gpus": 0,
        "gpus_total": 0, "gpu_memory": 0, "domain_mapping": False,
    }  # fmt: skip
    assert found.keys() <= {field.name for field in fields(Capabilities)}


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("registry.example.com:5000/team/pilotlight/predictor:0.1.0", "registry.example.com:5000/team"),
        ("registry.example.com/pilotlight/predictor@sha256:1", "registry.example.com"),
        ("pilotlight/predictor:0.1.0", None),
        ("example.com/gateway:1", None),
    ],
)
def test_our_images_are_where_the_gateways_is(image: str, registry: str | None) -> None:
    template = {"spec": {"containers": [{"image": image}]}}
    deployment = named("apps/v1", "Deployment", "pilotlight-system", "pilotlight-gateway", spec={"template": template})
    with PaperCluster(deployment) as paper:
        assert capabilities.discover(paper.cluster()).get("image_registry") == registry


def test_a_bare_cluster_has_no_add_ons() -> None:
    with PaperCluster() as paper:
        found = capabilities.discover(paper.cluster())
    assert (found["knative"], found["keda"], found["gateway_api"], found["our_gateway"]) == (False, "", False, False)
    assert found["default_mode"] == "raw"
    assert not {"features", "domain", "prometheus"} & found.keys()


@pytest.mark.parametrize("example", ["canary", "flowers-sklearn", "job-stateful"])
def test_a_plan_for_a_bare_cluster_has_only_kinds_that_it_knows(example: str) -> None:
    kinds = (*PLAIN, "policy/v1/PodDisruptionBudget", "networking.k8s.io/v1/NetworkPolicy")
    with PaperCluster(kinds=kinds) as paper:
        offered = Capabilities(**capabilities.discover(paper.cluster()))
        planned = plan_all(Sources([f"examples/services/{example}.yaml"]), offered)
        assert list(unknown_kinds(paper.cluster(), [each.document for each in planned.manifests()])) == []


def test_what_may_not_be_looked_at_is_left_out() -> None:
    forbidden = ("nodes", "pods", "services", "configmaps", "gateways", "deployments")
    with PaperCluster(FEATURES, kinds=PLAIN + KNATIVE + KEDA + GATEWAY, forbidden=forbidden) as paper:
        found = capabilities.discover(paper.cluster())
    assert found == {
        "knative": True, "default_mode": "serverless", "prometheus_operator": False, "leader_worker_set": False,
        "http_add_on": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("homes", "chosen"), [(["evil", "keda"], "keda"), (["add-on"], "add-on"), (["evil", "other"], ""), ([], "")]
)
def test_a_service_with_the_name_of_the_http_add_on_gets_no_requests_of_others(homes: list[str], chosen: str) -> None:
    found = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": capabilities.HTTP_SCALER, "namespace": home}}
        for home in homes
    ]
    with PaperCluster(*found, kinds=(*PLAIN, "http.keda.sh/v1beta1/InterceptorRoute")) as paper:
        facts = capabilities.http_add_on(paper.cluster())
    assert facts.get("http_scaler", "") == (f"{capabilities.HTTP_SCALER}.{chosen}:9090" if chosen else "")


def test_the_http_add_on_is_found_by_name_where_services_may_not_be_listed() -> None:
    scaler = {
        "apiVersion": "v1", "kind": "Service", "spec": {},
        "metadata": {"name": capabilities.HTTP_SCALER, "namespace": "keda"},
    }  # fmt: skip
    kinds = (*PLAIN, "http.keda.sh/v1beta1/InterceptorRoute")
    for objects, there in (([scaler], True), ([], False)):
        with PaperCluster(*objects, kinds=kinds, forbidden=("services:list",)) as paper:
            assert capabilities.http_add_on(paper.cluster())["http_add_on"] is there


def test_routes_need_a_gateway_to_hang_on() -> None:
    with PaperCluster(kinds=PLAIN + GATEWAY) as paper:
        assert capabilities.routes(paper.cluster()) == {"gateway_api": False}


@pytest.mark.parametrize(
    ("places", "chosen"),
    [
        (
            [("edge", "one"), ("pilotlight-system", "pilotlight")],
            {"name": "pilotlight", "namespace": "pilotlight-system"},
        ),
        ([("edge", "one")], {"name": "one", "namespace": "edge"}),
        ([("edge", "one"), ("edge", "two")], None),
    ],
)
def test_our_gateway_is_preferred_then_the_only_one(places: list[tuple[str, str]], chosen: Any) -> None:
    found = capabilities.select_route_parent([gateway(*place) for place in places])
    assert found == ({"route_parent": chosen} if chosen else {})


@pytest.mark.parametrize(
    ("version", "image", "found"),
    [
        ("2.21.0", "keda:1.0", "2.21.0"),
        ("main", "dev/keda:2.18.3", "2.18.3"),
        ("main", "host:5000/keda:v2.17.0@sha256:1234", "2.17.0"),
        ("main", "dev/keda:9aad7e4e3fba", ""),
    ],
)
def test_the_version_is_read_from_the_label_or_the_tag(version: str, image: str, found: str) -> None:
    assert capabilities.version_of([operator(version, image)]) == found


@pytest.mark.parametrize(
    ("claims", "installed", "found"), [("true", True, True), ("false", True, False), ("true", False, False)]
)
def test_hosts_are_mapped_where_knative_claims_them_by_itself(claims: str, installed: bool, found: bool) -> None:
    data = {"autocreate-cluster-domain-claims": claims}
    network = named("v1", "ConfigMap", "knative-serving", "config-network", data=data)
    mappings = ("serving.knative.dev/v1beta1/DomainMapping",) if installed else ()
    with PaperCluster(network, kinds=PLAIN + KNATIVE + mappings) as paper:
        assert capabilities.domain_mapping(paper.cluster()) == {"domain_mapping": found}


def test_free_gpus_are_those_that_no_living_pod_holds() -> None:
    def pod(phase: str, node: str = "a") -> dict[str, Any]:
        limits = {"limits": {"nvidia.com/gpu": "2"}}
        spec = {"nodeName": node, "containers": [{"resources": limits}]}
        return named("v1", "Pod", "default", "p", spec=spec, status={"phase": phase})

    node = named("v1", "Node", "", "a", status={"allocatable": {"nvidia.com/gpu": "8", "cpu": "64"}})
    assert capabilities.free_gpus([node], [pod("Running"), pod("Succeeded"), pod("Pending", "")]) == 6
    assert capabilities.allocatable_gpus([node, node]) == 16


def test_the_memory_of_gpus_is_that_of_the_smallest_that_is_labelled() -> None:
    def node(memory: str) -> dict[str, Any]:
        return {"metadata": {"name": "a", "labels": {"nvidia.com/gpu.memory": memory} if memory else {}}}

    assert capabilities.least_gpu_memory([node("81559"), node("24576"), node(""), node("much")]) == 24 * 2**30
    assert capabilities.least_gpu_memory([node("")]) == 0
