"""What render promises about the objects of any plan: they fit together, and one owner has each field."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.platform.render.render_plans import (
    GATEWAY,
    KPA,
    LATENCY,
    PLANS,
    hpa,
    keda,
    raw_canary,
    raw_from_zero,
    service,
    workload,
)

from pilotlight.errors import InternalError
from pilotlight.k8s.manifest import Manifest
from pilotlight.plan.types import Plan, Traffic
from pilotlight.render import render

KNATIVE = "serving.knative.dev/v1"


def every_plan() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def of_kind(manifests: list[Manifest], *kinds: str) -> Iterator[Any]:
    return (manifest.document for manifest in manifests if manifest.kind in kinds)


def only(plan: Plan, kind: str) -> Any:
    (document,) = of_kind(render(plan), kind)
    return document


def kinds(plan: Plan) -> set[str]:
    return {manifest.kind for manifest in render(plan)}


def within(labels: dict[str, str], others: dict[str, str]) -> bool:
    return labels.items() <= others.items()


@every_plan()
def test_no_two_objects_are_the_same(plan: Callable[[], Plan]) -> None:
    keys = [manifest.key for manifest in render(plan())]
    assert len(keys) == len(set(keys))


@every_plan()
def test_every_object_is_labelled_as_the_services_own(plan: Callable[[], Plan]) -> None:
    made = plan()
    assert all(within(dict(made.labels), manifest.document["metadata"]["labels"]) for manifest in render(made))


@every_plan()
def test_a_count_has_one_owner(plan: Callable[[], Plan]) -> None:
    manifests = render(plan())
    scaled = {
        (document["spec"]["scaleTargetRef"]["kind"], document["spec"]["scaleTargetRef"]["name"])
        for document in of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject")
    }
    counted = {
        (document["kind"], document["metadata"]["name"])
        for document in of_kind(manifests, "Deployment", "StatefulSet", "LeaderWorkerSet")
        if "replicas" in document["spec"]
    }
    existing = {(manifest.kind, manifest.name) for manifest in manifests}
    assert scaled <= existing
    assert not scaled & counted


@every_plan()
def test_selectors_find_the_pods_of_their_own_workload_and_no_others(plan: Callable[[], Plan]) -> None:
    manifests = render(plan())
    pods = {
        document["metadata"]["name"]: document["spec"]["template"]["metadata"]["labels"]
        for document in of_kind(manifests, "Deployment", "StatefulSet")
    }
    for document in of_kind(manifests, "Deployment", "StatefulSet"):
        selector = document["spec"]["selector"]["matchLabels"]
        assert [name for name, labels in pods.items() if within(selector, labels)] == [document["metadata"]["name"]]


@every_plan()
def test_services_of_the_service_select_something_that_is_there(plan: Callable[[], Plan]) -> None:
    manifests = render(plan())
    services = [document for document in of_kind(manifests, "Service") if "selector" in document["spec"]]
    selectors = [next(iter(document["spec"]["selector"].values())) for document in services]
    assert set(selectors) <= {manifest.name for manifest in manifests}


@every_plan()
def test_a_route_ends_at_services_that_are_there_or_granted(plan: Callable[[], Plan]) -> None:
    manifests = render(plan())
    here = {manifest.name for manifest in manifests if manifest.kind == "Service"}
    granted = {
        (document["metadata"]["namespace"], document["spec"]["to"][0]["name"])
        for document in of_kind(manifests, "ReferenceGrant")
    }
    for document in of_kind(manifests, "HTTPRoute"):
        backends = document["spec"]["rules"][0]["backendRefs"]
        assert sum(backend["weight"] for backend in backends) == 100
        for backend in backends:
            assert backend["name"] in here if "namespace" not in backend else tuple(backend.values())[:2] in granted


@every_plan()
def test_a_monitor_finds_exactly_one_service_and_a_port_of_it(plan: Callable[[], Plan]) -> None:
    manifests = render(plan())
    for monitor in of_kind(manifests, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        (found,) = (item for item in of_kind(manifests, "Service") if within(wanted, item["metadata"]["labels"]))
        names = [port["name"] for port in found["spec"]["ports"]]
        assert monitor["spec"]["endpoints"][0]["port"] in names
        assert len(names) == len(set(names))


def test_a_component_behind_another_is_not_public() -> None:
    plan = service(workload("transformer", "serverless", scaling=KPA), workload("predictor", "serverless", scaling=KPA))
    labels = {m.name: m.document["metadata"]["labels"] for m in render(plan) if m.api_version == KNATIVE}
    assert "networking.knative.dev/visibility" not in labels["iris-transformer"]
    assert labels["iris-predictor"]["networking.knative.dev/visibility"] == "cluster-local"


def test_what_visibility_the_plan_says_stays() -> None:
    label = {"networking.knative.dev/visibility": "cluster-local"}
    plan = service(workload(mode="serverless", scaling=KPA, labels=label))
    made = [manifest for manifest in render(plan) if manifest.api_version == KNATIVE]
    assert [each.kind for each in made if within(label, each.document["metadata"]["labels"])] == ["Service", "Route"]


def test_the_pod_template_of_a_revision_is_exactly_the_planned_one() -> None:
    made = workload(mode="serverless", scaling=KPA)
    (manifest,) = (
        manifest for manifest in render(service(made)) if manifest.key[:2] == ("serving.knative.dev", "Service")
    )
    template = manifest.document["spec"]["template"]
    assert template["metadata"]["labels"] == made.template["metadata"]["labels"]
    assert template["spec"] == made.template["spec"]


def test_empty_annotations_are_left_out_of_a_pod_template() -> None:
    made = workload(template={"metadata": {"labels": {"a": "b"}, "annotations": {}}, "spec": {"containers": []}})
    assert "annotations" not in only(service(made), "Deployment")["spec"]["template"]["metadata"]


def test_without_a_revisions_name_all_goes_to_the_latest() -> None:
    plan = service(workload(mode="serverless", scaling=KPA, revision=""))
    (made,) = (manifest.document for manifest in render(plan) if manifest.key[:2] == ("serving.knative.dev", "Service"))
    assert "name" not in made["spec"]["template"]["metadata"]
    assert made["spec"]["traffic"] == [{"latestRevision": True, "percent": 100}]


def test_both_sides_of_a_canary_are_open_to_the_gateway_and_weighted() -> None:
    manifests = render(raw_canary())
    (route,) = of_kind(manifests, "HTTPRoute")
    weights = {item["name"]: item["weight"] for item in route["spec"]["rules"][0]["backendRefs"]}
    assert weights == {"iris-engine": 80, "iris-blue-engine": 20}
    for policy in of_kind(manifests, "NetworkPolicy"):
        assert {"protocol": "TCP", "port": 8080} in policy["spec"]["ingress"][0]["ports"]


def test_traffic_to_a_revision_that_nothing_runs_is_a_defect_of_the_plan() -> None:
    plan = service(workload(traffic=(Traffic("gone", 100),)), gateway=GATEWAY)
    with pytest.raises(InternalError, match="revision gone, which no workload"):
        render(plan)


def test_a_component_behind_another_takes_calls_only_from_its_service() -> None:
    manifests = render(service(workload("router"), workload("engine")))
    policies = {
        document["metadata"]["name"]: document["spec"]["ingress"] for document in of_kind(manifests, "NetworkPolicy")
    }
    assert policies["iris-engine"] == [
        {"ports": [{"protocol": "TCP", "port": 8082}]},
        {"from": [{"podSelector": {"matchLabels": {"pilotlight.dev/workload": "iris-router"}}}]},
    ]


def test_a_call_that_wakes_the_service_may_last_as_long_as_its_start_and_its_answer() -> None:
    assert only(raw_from_zero(), "HTTPRoute")["spec"]["rules"][0]["timeouts"] == {"request": "1200s"}


def test_a_namespace_is_crossed_only_with_a_grant() -> None:
    plan = raw_from_zero()
    assert plan.activator is not None
    near = replace(plan, activator=replace(plan.activator, namespace=plan.namespace))
    assert "ReferenceGrant" in kinds(plan)
    assert "ReferenceGrant" not in kinds(near)


def test_without_a_gateway_there_is_no_route() -> None:
    assert not kinds(service(workload())) & {"HTTPRoute", "ReferenceGrant"}


def test_without_monitoring_nothing_needs_the_prometheus_operator() -> None:
    for make in PLANS.values():
        assert not kinds(replace(make(), monitoring=False)) & {"PodMonitor", "ServiceMonitor", "PrometheusRule"}


def test_a_virtual_service_has_no_workload() -> None:
    assert kinds(service(workload(mode="virtual"), service_account="")) == set()


def test_the_scaler_decides_which_autoscaler_there_is() -> None:
    found = {"hpa": {"HorizontalPodAutoscaler"}, "keda": {"ScaledObject"}}
    for scaling in (hpa(), keda(LATENCY)):
        made = kinds(service(workload(scaling=scaling)))
        assert made & {"HorizontalPodAutoscaler", "ScaledObject"} == found[scaling.scaler]


def test_what_a_plan_brings_along_is_applied_as_it_is() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache", "namespace": "default"}}
    assert only(service(workload(), objects=(claim,)), "PersistentVolumeClaim") == claim


def test_objects_come_in_the_order_of_applying() -> None:
    order = [manifest.kind for manifest in render(PLANS["raw-interceptor"]())]
    assert order.index("ServiceAccount") < order.index("TriggerAuthentication") < order.index("Deployment")
    assert order.index("Deployment") < order.index("ScaledObject") < order.index("HTTPRoute")


def test_a_serverless_service_answers_at_its_own_name() -> None:
    split = (Traffic("iris-engine-1f3a9c07", 20, "latest"), Traffic("iris-engine-0be4d2aa", 80, "prev"))
    route = only(service(workload(mode="serverless", scaling=KPA, traffic=split)), "Route")
    assert (route["apiVersion"], route["metadata"]["name"]) == (KNATIVE, "iris")
    assert "networking.knative.dev/visibility" not in route["metadata"]["labels"], "its public host is Knative's own"
    assert [(each["revisionName"], each["percent"]) for each in route["spec"]["traffic"]] == [
        ("iris-engine-1f3a9c07", 20),
        ("iris-engine-0be4d2aa", 80),
    ]
    assert not [each for each in route["spec"]["traffic"] if "tag" in each], "tags would be hosts of their own"
    latest = only(service(workload(mode="serverless", scaling=KPA, revision="")), "Route")
    assert latest["spec"]["traffic"] == [{"configurationName": "iris-engine", "latestRevision": True, "percent": 100}]
    assert "Route" not in kinds(raw_canary())
