"""Routers: strategy and environment of our gateway as one, protocols of prefill and decode, discovery of pods.

docs/reference/openai.md describes the protocols of prefill and decode. The strategy `inference_pool` puts the endpoint
picker of the Gateway API Inference Extension in place of our router; where there is no cluster ours serves.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.contract import ENV_ROUTER_PREFIX, HTTP_PORT, OLD_ROUTER_STRATEGIES, ROUTER_STRATEGIES
from pilotlight.k8s import names
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.types import Capabilities, DecisionLog, EndpointPicker, Plan, Requirement, Workload
from pilotlight.spec.service import Component, Role, Service

Json = Any
COMMAND: Final = ("python", "-m", "pilotlight.gateway", "route")
KNOWN: Final = ("routing_strategy", "health_check_interval")
SIDECARS: Final = ("llm-d-routing-sidecar", "llm-d-router")  # images of llm-d
NIXL: Final = "NixlConnector"  # the only connector of vLLM whose scheme the router has
UNKNOWN: Final = (
    "the router cannot detect how its engines transfer KV caches: neither --disaggregation-mode (SGLang) nor "
    f"--kv-transfer-config with {NIXL} (vLLM) is among the arguments of both; add it, or annotate the runtime with "
    f"{names.ANNOTATION_DISAGGREGATION}: {', '.join(names.DISAGGREGATIONS)}"
)
POOL: Final = "inference_pool"
PICKER_IMAGE: Final = "registry.k8s.io/gateway-api-inference-extension/epp:v1.5.0"
_STRATEGY_PATH: Final = "spec.router.config.routing_strategy"
_BOOTSTRAP_PORT: Final = re.compile(r"--disaggregation-bootstrap-port[= ](\d+)")
_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}


def router_environment(context: PlanContext, timeout_s: int, log: DecisionLog) -> list[dict[str, str]]:
    """Return the variables of our gateway; the default strategy of a disaggregated service is prefill_decode."""
    service, config = context.service, context.component.config
    if context.component.graph:
        return _variables(_graph_settings(context, timeout_s, log))
    disaggregated = "decoder" in service.components
    default = "prefill_decode" if disaggregated else "least_loaded"
    written = config.get("routing_strategy", default)
    strategy = OLD_ROUTER_STRATEGIES.get(written, written)
    if strategy != written:
        log.warn("PL109", context.path("config.routing_strategy"), f"{written} is deprecated; use {strategy}")
    _check_config(context, strategy, disaggregated, log)
    implied = "engine and decoder" if disaggregated else "the default"
    reason = "router.config" if "routing_strategy" in config else implied
    log.decide("router", "strategy", strategy, reason)
    values = {
        "STRATEGY": strategy,
        "HEALTH_CHECK_INTERVAL_S": f"{_interval(context, log):g}",
        "ENGINE": names.workload(service.name, "engine"),
        "NAMESPACE": service.namespace,
    }
    if disaggregated:
        values["DECODER"] = names.workload(service.name, "decoder")
    return _variables(values | dict(_addresses(context, log)))


def _variables(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": f"{ENV_ROUTER_PREFIX}{name}", "value": value} for name, value in values.items()]


def _graph_settings(context: PlanContext, timeout_s: int, log: DecisionLog) -> dict[str, str]:
    graph = context.component.graph
    steps = sum(len(node["steps"]) for node in graph["nodes"].values())
    reason = f"nodes: {len(graph['nodes'])}, steps: {steps}; the Pilotlight gateway executes it"
    log.decide("router", "graph", graph["nodes"]["root"]["routerType"], reason)
    text = json.dumps(graph["nodes"], separators=(",", ":"), ensure_ascii=False)
    return {
        "GRAPH": re.sub(r"\$(?=[$(])", r"\\u0024", text),  # else Kubernetes would expand it
        "NAMESPACE": context.service.namespace,
        "TIMEOUT_S": str(timeout_s),
        **({"STEP_TIMEOUT_S": str(graph["stepTimeout"])} if graph["stepTimeout"] else {}),
    }


def _addresses(context: PlanContext, log: DecisionLog) -> Iterator[tuple[str, str]]:
    """Yield protocol and ports of the engines behind the router; no ports that are the router's default."""
    behind = {work.role: work for work in context.behind}
    engine, decoder = behind.get("engine"), behind.get("decoder")
    ports = {"ENGINE_PORT": engine.port if engine else HTTP_PORT}
    if engine and decoder:
        protocol = _decide_protocol(context, engine, decoder, log)
        yield "PROTOCOL", protocol
        if protocol == "sglang" and (port := _BOOTSTRAP_PORT.search(_arguments(engine))):
            yield "BOOTSTRAP_PORT", port[1]
        sidecars = filter(_is_sidecar, _containers(decoder))
        listening = (int(port["containerPort"]) for each in sidecars for port in each.get("ports") or ())
        ports["DECODER_PORT"] = next(listening, decoder.port)
    yield from ((name, str(port)) for name, port in ports.items() if port != HTTP_PORT)


def _decide_protocol(context: PlanContext, engine: Workload, decoder: Workload, log: DecisionLog) -> str:
    """Return the protocol of prefill and decode: by annotation, else by their arguments. PL377 if there is none."""
    if context.protocol:
        log.decide("router", "prefill and decode", context.protocol, f"annotation {names.ANNOTATION_DISAGGREGATION}")
        return context.protocol
    prefilling, decoding = protocol_of(engine), protocol_of(decoder)
    if decoding == "llm-d" or (prefilling and prefilling == decoding):
        log.decide("router", "prefill and decode", decoding, "arguments and images of engine and decoder")
    elif prefilling and decoding:
        log.error("PL377", "spec.decoder", f"uses {decoding} and the engine {prefilling}; use one runtime for both")
    else:
        path = "spec.runtime.name" if context.service.runtime else "spec.engine"
        log.error("PL377", path, UNKNOWN)
    return decoding


def protocol_of(work: Workload) -> str:
    """Return the protocol in which an engine hands over KV caches, by its containers; empty: none is known."""
    if any(_is_sidecar(container) for container in _containers(work)):
        return "llm-d"
    arguments = _arguments(work)
    if "--disaggregation-mode" in arguments:
        return "sglang"
    return "vllm" if "--kv-transfer-config" in arguments and NIXL in arguments else ""


def transfer_environment(context: PlanContext) -> list[dict[str, Json]]:
    """Return the address by which vLLM's decoders reach a prefill engine; its default is localhost."""
    source = {"fieldRef": {"fieldPath": "status.podIP"}}
    needed = "decoder" in context.service.components and NIXL in _program(context.choice.container)
    return [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": source}] if needed else []


def discovers_pods(container: Mapping[str, Json]) -> bool:
    """Return whether a router of others finds its engines by the Kubernetes API."""
    return "--service-discovery" in _program(container)


def _program(container: Mapping[str, Json]) -> str:
    return " ".join(map(str, (*(container.get("command") or ()), *(container.get("args") or ()))))


def _containers(work: Workload) -> list[Mapping[str, Json]]:
    spec = work.template["spec"]
    return [*spec["containers"], *(spec.get("initContainers") or ())]


def _is_sidecar(container: Mapping[str, Json]) -> bool:
    return any(name in str(container.get("image")) for name in SIDECARS)


def _arguments(work: Workload) -> str:
    return " ".join(map(_program, work.template["spec"]["containers"]))


def _check_config(context: PlanContext, strategy: str, disaggregated: bool, log: DecisionLog) -> None:
    path = context.path("config.routing_strategy")
    if strategy not in ROUTER_STRATEGIES:
        log.error("PL346", path, f"{strategy}, must be one of {', '.join((*ROUTER_STRATEGIES, POOL))}")
    elif strategy == "prefill_decode" and not disaggregated:
        log.error("PL346", path, "prefill_decode needs a decoder; add one or use prefix_aware")
    elif strategy != "prefill_decode" and disaggregated:
        log.error("PL346", path, f"{strategy} does not use the decoder; use prefill_decode, or remove the decoder")
    for key in context.component.config:
        if key not in KNOWN:
            log.error("PL347", context.path(f"config.{key}"), f"is not a router setting; known: {', '.join(KNOWN)}")


def _interval(context: PlanContext, log: DecisionLog) -> float:
    written = context.component.config.get("health_check_interval", "10s")
    matched = _INTERVAL.fullmatch(written)
    seconds = float(matched[1]) * _UNITS[matched[2]] if matched else 0.0
    if not 0.1 <= seconds <= 3600:
        path = context.path("config.health_check_interval")
        log.error("PL348", path, f"{written}, must be a duration from 100ms to 60m such as 30s")
    return seconds


def endpoint_picker(
    service: Service, capabilities: Capabilities, log: DecisionLog
) -> tuple[Service, EndpointPicker | None]:
    """Return the service without its router, and the endpoint picker; the service itself if it is to have none."""
    router = service.components.get("router")
    if router is None or router.config.get("routing_strategy") != POOL:
        return service, None
    components: dict[Role, Component] = dict(service.components)
    if not capabilities.is_cluster:
        log.decide("router", "strategy", "prefix_aware", f"{POOL} needs a cluster; our router does the same here")
        components["router"] = replace(router, config={"routing_strategy": "prefix_aware"})
        return replace(service, components=components), None
    if "decoder" in components:
        log.error(
            "PL346", _STRATEGY_PATH, f"{POOL} does not use the decoder; use prefill_decode, or remove the decoder"
        )
    log.decide("router", "strategy", POOL, "the Gateway calls an endpoint picker for the pod of each request")
    del components["router"]
    container, replicas = {"image": PICKER_IMAGE, **(router.runner or {})}, max(router.min_replicas or 1, 1)
    plugins = router.config.get("plugins", "")
    picker = EndpointPicker(container, router.pod, replicas, plugins, dict(router.labels), dict(router.annotations))
    return replace(service, components=components), picker


def check_pool(plan: Plan, log: DecisionLog) -> Iterator[Requirement]:
    """Yield what an InferencePool needs of the cluster; record why the Gateway could not send requests to it."""
    if plan.endpoint_picker is None:
        return
    entry = next((work for work in plan.workloads if work.name == plan.entry), None)
    if not plan.gateway:
        log.error("PL346", _STRATEGY_PATH, f"{POOL} needs an HTTPRoute, and the service is not exposed; expose it")
    elif entry is not None and entry.mode == "serverless":
        fix = "set minReplicas to 1, or mode Standard (OME: RawDeployment)"
        log.error("PL346", _STRATEGY_PATH, f"{POOL} cannot wake a service; {fix}")
    elif plan.activator is not None:
        fix = "set minReplicas to 1 and remove the access annotations, or use prefix_aware"
        log.error("PL346", _STRATEGY_PATH, f"{POOL} bypasses our gateway, which wakes it or enforces access; {fix}")
    yield Requirement("crd", "inferencepools.inference.networking.k8s.io", "the Gateway picks pods by an InferencePool")
