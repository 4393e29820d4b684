"""Who enforces the access annotations of a service: its own pods, or our gateway in front of images of others."""

import json
from typing import Any

import pytest
from tests.platform.plan.building import (
    FOREIGN,
    annotated,
    codes,
    env,
    in_mode,
    kserve,
    ome,
    planned,
    reason,
    refusals,
    with_component,
    workload,
)

from pilotlight.k8s.names import ANNOTATION_RATE, ANNOTATION_TOKENS, ANNOTATION_WAKE_BY
from pilotlight.plan.types import Capabilities, Plan
from pilotlight.render import render
from pilotlight.spec.service import NodeGroup, Service
from pilotlight.wire.access_file import decode

ONE, TWO = "0a" * 32, "0b" * 32
OWN_MODES = {
    "serverless": ome(min_replicas=0),
    "raw": in_mode(ome(), "RawDeployment"),
    "raw at zero": in_mode(ome(min_replicas=0), "RawDeployment"),
    "stateful": in_mode(ome(), "Stateful"),
    "kserve serverless": kserve(),
    "kserve raw": in_mode(kserve(), "Standard"),
}

GATEWAY_ENFORCES = Capabilities(access_at_gateway=True)


def closed(service: Service, tokens: str = ONE, **more: str) -> Service:
    return annotated(service, **{ANNOTATION_TOKENS: tokens, **more})


def objects(made: Plan, kind: str) -> list[dict[str, Any]]:
    return [dict(each.document) for each in render(made) if each.document["kind"] == kind]


@pytest.mark.parametrize("service", OWN_MODES.values(), ids=OWN_MODES)
def test_pods_of_ours_mount_the_rules_in_every_mode(service: Service) -> None:
    made = planned(closed(service, **{ANNOTATION_RATE: "100/1m"}))
    (work,) = made.workloads
    spec = work.template["spec"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "access"]
    assert env(work)["INFERENCE_ACCESS_FILE"] == f"{mount['mountPath']}/access.json"
    assert {"name": "access", "secret": {"secretName": "iris-access"}} in spec["volumes"]
    (secret,) = objects(made, "Secret")
    assert secret["metadata"]["name"] == "iris-access"
    rules = decode(secret["stringData"]["access.json"])
    assert rules.access is not None
    assert rules.access.tokens == (ONE,)
    assert rules.rate is not None
    assert (rules.rate.requests, rules.rate.seconds) == (100, 60.0)
    assert reason(made, f"{work.role}: rate limit")[0] == "100/1m per replica"
    assert "without a new revision" in reason(made, f"{work.role}: access")[1]


@pytest.mark.parametrize("service", OWN_MODES.values(), ids=OWN_MODES)
def test_a_rotated_token_changes_the_secret_alone_and_makes_no_revision(service: Service) -> None:
    before, after = planned(closed(service)), planned(closed(service, f"{ONE},{TWO}"))
    assert before.workloads[0].template == after.workloads[0].template
    assert before.workloads[0].revision == after.workloads[0].revision
    assert objects(before, "Secret") != objects(after, "Secret")
    assert before.workloads[0].revision != planned(service).workloads[0].revision


def test_without_annotations_nothing_is_mounted() -> None:
    made = planned(ome())
    assert not objects(made, "Secret")
    assert "access" not in json.dumps(made.workloads[0].template)


def test_on_one_machine_the_gateway_enforces_them_and_pods_do_not() -> None:
    local = GATEWAY_ENFORCES
    assert not objects(planned(closed(ome()), local), "Secret")
    assert workload(closed(ome()), capabilities=local).revision == workload(ome(), capabilities=local).revision
    assert not refusals(closed(ome(runtime_name=FOREIGN, min_replicas=0)), capabilities=local)


@pytest.mark.parametrize("written", [{ANNOTATION_TOKENS: ONE}, {ANNOTATION_RATE: "1/s"}], ids=["tokens", "rate"])
def test_an_image_of_others_in_knative_is_an_error_that_names_the_field_and_the_fix(written: dict[str, str]) -> None:
    for service in (kserve(FOREIGN), ome(runtime_name=FOREIGN, min_replicas=0)):
        (refused,) = refusals(annotated(service, **written))
        assert (refused.code, refused.path) == ("PL367", f"metadata.annotations.{next(iter(written))}")
        assert "set mode Standard (OME: RawDeployment)" in refused.message


def policy_of(made: Plan, name: str) -> dict[str, Any]:
    (policy,) = [each for each in objects(made, "NetworkPolicy") if each["metadata"]["name"] == name]
    return policy


def test_a_group_of_nodes_of_others_is_reached_through_the_gateway_and_by_its_own_nodes() -> None:
    made = planned(closed(ome(runtime_name=FOREIGN, worker=NodeGroup(size=1))))
    policy = policy_of(made, "iris-engine")["spec"]
    nodes = {"leaderworkerset.sigs.k8s.io/name": "iris-engine"}
    assert policy["podSelector"] == {"matchLabels": nodes}
    gateway, group = policy["ingress"]
    assert gateway["from"][0]["podSelector"]["matchLabels"]["pilotlight.dev/gateway"] == "pilotlight-gateway"
    assert group == {"from": [{"podSelector": {"matchLabels": nodes}}]}


@pytest.mark.parametrize("mode", ["RawDeployment", "Stateful"])
def test_an_image_of_others_elsewhere_is_reached_through_the_gateway_alone(mode: str) -> None:
    made = planned(closed(in_mode(ome(runtime_name=FOREIGN), mode)))
    assert reason(made, "engine: access")[0] == "enforced by the gateway"
    (route,) = objects(made, "HTTPRoute")
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["name"], backend["namespace"]) == ("pilotlight-gateway", "pilotlight-system")
    (alias,) = [each for each in objects(made, "Service") if each["metadata"]["name"] == "iris"]
    assert alias["spec"]["externalName"] == "pilotlight-gateway.pilotlight-system.svc.cluster.local"
    (rule,) = policy_of(made, "iris-engine")["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "pilotlight-system"}
    assert peer["podSelector"]["matchLabels"]["pilotlight.dev/gateway"] == "pilotlight-gateway"
    assert rule["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert not objects(made, "Secret")


def test_prometheus_keeps_the_metrics_port_of_an_image_of_others() -> None:
    ports = [{"name": "http", "containerPort": 8000}, {"name": "metrics", "containerPort": 9000}]
    pod = {"containers": [{"name": "kserve-container", "image": "vllm/vllm-openai:v1", "ports": ports}]}
    service = closed(in_mode(kserve(model=None, pod=pod), "Standard"))
    inside = policy_of(planned(service), "iris-predictor")["spec"]["ingress"]
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert inside[1] == {"from": [monitoring], "ports": [{"protocol": "TCP", "port": 9000}]}
    outside = Capabilities(prometheus="https://prometheus.example.com")
    assert policy_of(planned(service, outside), "iris-predictor")["spec"]["ingress"][1] == {"ports": inside[1]["ports"]}


@pytest.mark.parametrize(
    ("service", "capabilities", "message"),
    [
        (in_mode(ome(runtime_name=FOREIGN), "RawDeployment"), Capabilities(our_gateway=False), "Pilotlight gateway"),
        (in_mode(kserve(FOREIGN, protocol="grpc-v2"), "Standard"), None, "gRPC bypasses the gateway"),
        (
            annotated(in_mode(ome(runtime_name=FOREIGN, min_replicas=0), "RawDeployment"), **{
                ANNOTATION_WAKE_BY: "http-add-on"
            }),
            Capabilities(http_add_on=True), "the HTTP add-on does not enforce it",
        ),
    ],
    ids=["no gateway", "gRPC", "another activator"],
)  # fmt: skip
def test_where_the_gateway_cannot_front_it_is_an_error(
    service: Service, capabilities: Capabilities | None, message: str
) -> None:
    refused = refusals(closed(service), capabilities=capabilities)
    assert codes(refused) == ["PL367"]
    assert message in refused[0].message


def test_behind_a_transformer_of_others_the_predictor_is_called_by_that_alone() -> None:
    pod = {"containers": [{"name": "kserve-container", "image": "example/transformer:1"}]}
    service = closed(in_mode(with_component(kserve(), "transformer", pod=pod), "Standard"))
    made = planned(service)
    predictor = next(work for work in made.workloads if work.role == "predictor")
    assert "INFERENCE_ACCESS_FILE" not in env(predictor), "a transformer may drop the client's token"
    rule, metrics = policy_of(made, "iris-predictor")["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {"matchLabels": {"pilotlight.dev/workload": "iris-transformer"}}}]}
    assert metrics["ports"] == [{"protocol": "TCP", "port": 8082}]
    assert codes(refusals(closed(with_component(kserve(), "transformer", pod=pod)))) == ["PL367"]


def test_a_predictor_with_an_explainer_is_checked_by_the_gateway_since_explainers_send_no_token() -> None:
    pod = {"containers": [{"name": "kserve-container", "image": "example/explainer:1"}]}
    service = closed(with_component(kserve(), "explainer", pod=pod))
    made = planned(in_mode(service, "Standard"))
    assert "INFERENCE_ACCESS_FILE" not in env(next(work for work in made.workloads if work.role == "predictor"))
    assert reason(made, "predictor: access")[0] == "enforced by the gateway"
    assert made.activator is not None
    gateway, components, metrics = policy_of(made, "iris-predictor")["spec"]["ingress"]
    assert gateway["ports"] == [{"protocol": "TCP", "port": 8080}]
    assert components == {"from": [{"podSelector": {"matchLabels": {"pilotlight.dev/workload": "iris-explainer"}}}]}
    assert metrics["ports"] == [{"protocol": "TCP", "port": 8082}]
    refused = refusals(service)
    assert set(codes(refused)) == {"PL367"}
    assert "the explainer calls iris-predictor without the client's token" in refused[0].message
    local = planned(service, GATEWAY_ENFORCES)
    assert local.activator is None


def test_our_router_checks_and_so_do_engines_of_ours_behind_it() -> None:
    made = planned(closed(in_mode(with_component(ome(), "router"), "RawDeployment")))
    for work in made.workloads:
        assert "INFERENCE_ACCESS_FILE" in env(work), work.name


def test_engines_of_others_behind_our_router_are_called_by_that_alone() -> None:
    made = planned(closed(in_mode(with_component(ome(runtime_name=FOREIGN), "router"), "RawDeployment")))
    assert made.activator is None
    (rule,) = policy_of(made, "iris-engine")["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {"matchLabels": {"pilotlight.dev/workload": "iris-router"}}}]}
