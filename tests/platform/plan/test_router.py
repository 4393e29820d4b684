"""Routers: the protocol of prefill and decode that ours must speak, the ports of its engines, and who reads pods."""

from dataclasses import replace
from typing import Any

import pytest
from tests.platform.plan.building import (
    FOREIGN,
    annotated,
    changed,
    codes,
    container,
    env,
    ome,
    planned,
    refusals,
    with_component,
    workload,
)

from pilotlight.plan.types import Capabilities
from pilotlight.render import render
from pilotlight.spec.service import NodeGroup, Service

NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
SGLANG = {"args": ["--disaggregation-mode=prefill"]}
NAMES = "pilotlight.dev/model-names"
VLLM = {"args": ["--kv-transfer-config", NIXL]}
SIDECAR = {"name": "sidecar", "image": "ghcr.io/llm-d/llm-d-routing-sidecar:v0.3.0", "ports": [{"containerPort": 8000}]}


def apart(engine: dict[str, Any], decoder: dict[str, Any], **more: Any) -> Service:
    """`more` are fields of the decoder."""
    split = with_component(ome(runtime_name=FOREIGN, runner=engine), "decoder", runner=decoder, **more)
    return with_component(split, "router")


def settings(service: Service) -> dict[str, str]:
    prefix = "PILOTLIGHT_ROUTER_"
    return {
        name.removeprefix(prefix): value for name, value in env(workload(service, "router")).items() if prefix in name
    }


@pytest.mark.parametrize(
    ("runner", "protocol"),
    [(SGLANG, "sglang"), (VLLM, "vllm"),
     ({"command": ["bash", "-c", "exec python3 -m sglang.launch_server --disaggregation-mode prefill"]}, "sglang")],
)  # fmt: skip
def test_the_protocol_is_read_from_the_arguments(runner: dict[str, Any], protocol: str) -> None:
    told = settings(apart(runner, runner))
    assert (told["STRATEGY"], told["PROTOCOL"]) == ("prefill_decode", protocol)
    assert not told.keys() & {"BOOTSTRAP_PORT", "ENGINE_PORT", "DECODER_PORT"}


def test_ports_that_are_no_defaults_are_in_the_settings() -> None:
    engine = {"args": [*SGLANG["args"], "--disaggregation-bootstrap-port", "9001"], "ports": [{"containerPort": 30000}]}
    told = settings(apart(engine, {**SGLANG, "ports": [{"containerPort": 30001}]}))
    assert (told["BOOTSTRAP_PORT"], told["ENGINE_PORT"], told["DECODER_PORT"]) == ("9001", "30000", "30001")
    alone = with_component(ome(runtime_name=FOREIGN, runner={"ports": [{"containerPort": 8000}]}), "router")
    assert (settings(alone)["ENGINE_PORT"], settings(alone).get("PROTOCOL")) == ("8000", None)


def test_the_router_of_llm_d_calls_the_sidecar() -> None:
    for field in ("containers", "initContainers"):
        service = apart(VLLM, {**VLLM, "ports": [{"containerPort": 8200}]}, pod={field: [SIDECAR]})
        assert (settings(service)["PROTOCOL"], settings(service)["DECODER_PORT"]) == ("llm-d", "8000")


def test_vllm_s_side_channel_has_the_pod_s_address() -> None:
    def host(service: Service) -> Any:
        found = [each for each in container(workload(service))["env"] if each["name"] == "VLLM_NIXL_SIDE_CHANNEL_HOST"]
        return [each.get("value") or each["valueFrom"] for each in found]

    assert host(apart(VLLM, VLLM)) == [{"fieldRef": {"fieldPath": "status.podIP"}}]
    own = {**VLLM, "env": [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "10.0.0.1"}]}
    assert host(apart(own, VLLM)) == ["10.0.0.1"]
    assert host(apart(SGLANG, SGLANG)) == []


def test_an_annotation_names_the_protocol() -> None:
    service = annotated(apart({}, {}), **{"pilotlight.dev/disaggregation": "vllm"})
    assert settings(service)["PROTOCOL"] == "vllm"


@pytest.mark.parametrize(
    ("engine", "decoder", "path"),
    [({}, {}, "spec.runtime.name"), (SGLANG, {}, "spec.runtime.name"), (SGLANG, VLLM, "spec.decoder"),
     (VLLM, {"args": ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1"}']}, "spec.runtime.name")],
)  # fmt: skip
def test_engines_without_a_common_protocol_are_refused(
    engine: dict[str, Any], decoder: dict[str, Any], path: str
) -> None:
    (problem,) = refusals(apart(engine, decoder))
    assert (problem.code, problem.path) == ("PL377", path)


def test_a_router_of_others_has_protocols_of_its_own() -> None:
    assert not refusals(with_component(apart({}, {}), "router", runner={"image": "example/router:1"}))


def test_neither_half_falls_to_zero() -> None:
    made = planned(changed(apart(SGLANG, SGLANG, min_replicas=0), min_replicas=0))
    assert [work.scaling.min_replicas for work in made.workloads] == [1, 1, 1]
    assert codes(made.warnings).count("PL311") == 2


def objects(service: Service) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each.kind, each.name): dict(each.document) for each in render(planned(service))}


def test_a_router_of_ours_finds_every_pod_by_a_headless_service() -> None:
    made = objects(apart(SGLANG, SGLANG))
    for role in ("engine", "decoder"):
        spec = made["Service", f"iris-{role}-pods"]["spec"]
        assert (spec["clusterIP"], "publishNotReadyAddresses" in spec) == ("None", False)
    group = changed(with_component(ome(), "router"), worker=NodeGroup(size=1, runner={"args": ["$(LWS_WORKER_INDEX)"]}))
    leaders = objects(group)["Service", "iris-engine-pods"]["spec"]["selector"]
    assert leaders["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    for service in (ome(), with_component(ome(), "router", runner={"image": "example/router:1"})):
        assert ("Service", "iris-engine-pods") not in objects(service)


def test_a_router_that_discovers_pods_may_read_them() -> None:
    runner = {"image": "example/router:1", "args": ["--service-discovery", "--pd-disaggregation"]}
    service = with_component(apart(SGLANG, SGLANG), "router", runner=runner)
    made = objects(service)
    (rule,) = made["Role", "iris-router"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    binding = made["RoleBinding", "iris-router"]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == ("iris-router", "iris")
    tokens = {
        work.role: work.template["spec"].get("automountServiceAccountToken") for work in planned(service).workloads
    }
    assert tokens == {"engine": None, "decoder": None, "router": True}
    own = replace(service.components["router"], pod={"serviceAccountName": "mine"})
    bound = objects(replace(service, components={**service.components, "router": own}))
    assert not {kind for kind, _ in bound} & {"Role", "RoleBinding"}


@pytest.mark.parametrize(
    ("service", "role", "names"),
    [(ome(runtime_name="llm"), "engine", "iris"), (ome(), "engine", None),
     (ome(runtime_name=FOREIGN, runner={"image": "vllm/vllm-openai:v0.20.1"}), "engine", "iris"),
     (with_component(ome(runtime_name="llm"), "router"), "router", "iris"),
     (with_component(ome(runtime_name="llm"), "router"), "engine", None),
     (annotated(ome(), **{NAMES: "iris, gpt-4o"}), "engine", "iris, gpt-4o"),
     (annotated(ome(runtime_name="llm"), **{NAMES: ""}), "engine", None)],
)  # fmt: skip
def test_the_entry_of_a_language_model_has_its_names_behind_v1(service: Service, role: Any, names: str | None) -> None:
    assert workload(service, role).annotations.get(NAMES) == names


def pooled(**engine: Any) -> Service:
    service = ome(runtime_name=FOREIGN, runner={"image": "lmsysorg/sglang:v0.5.0"}, **engine)
    return with_component(service, "router", config={"routing_strategy": "inference_pool"}, min_replicas=2)


def test_an_inference_pool_takes_the_place_of_the_router_in_a_cluster_and_only_there() -> None:
    made = objects(pooled())
    pool, picker = made["InferencePool", "iris-engine"], made["Deployment", "iris-engine-epp"]
    assert made["HTTPRoute", "iris"]["spec"]["rules"][0]["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "iris-engine", "weight": 100}
    ]
    pods = made["Deployment", "iris-engine"]["spec"]["template"]["metadata"]["labels"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= pods.items()
    assert pool["spec"]["endpointPickerRef"]["name"] == made["Service", "iris-engine-epp"]["metadata"]["name"]
    arguments = picker["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--pool-name=iris-engine", "--ha-enable-leader-election"} <= set(arguments)
    assert pods["inference.networking.k8s.io/engine-type"] == "sglang", "the metrics of vLLM are the default"
    assert ("Deployment", "iris-router") not in made
    assert "inferencepools.inference.networking.k8s.io" in {each.name for each in planned(pooled()).requirements}
    ours = with_component(ome(), "router", config={"routing_strategy": "inference_pool"})
    local = workload(ours, "router", capabilities=Capabilities(target="local"))
    assert env(local)["PILOTLIGHT_ROUTER_STRATEGY"] == "prefix_aware"


@pytest.mark.parametrize(
    ("service", "words"),
    [(pooled(min_replicas=0), "cannot wake a service"),
     (with_component(pooled(), "decoder"), "does not use the decoder"),
     (replace(pooled(), labels={"networking.knative.dev/visibility": "cluster-local"}), "needs an HTTPRoute")],
)  # fmt: skip
def test_an_inference_pool_that_the_gateway_cannot_use_is_refused(service: Service, words: str) -> None:
    found = [(problem.code, problem.path, words in problem.message) for problem in refusals(service)]
    assert ("PL346", "spec.router.config.routing_strategy", True) in found
