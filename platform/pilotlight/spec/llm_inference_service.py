"""Reader of KServe's LLMInferenceService into the internal model.

The main workload becomes OME's engine, or its decoder beside `prefill`, which is the engine then; the scheduler becomes
our router. Without a command of its own the engine is vLLM, whose arguments are added to those of its runtime.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pilotlight.contract import is_predictor_image
from pilotlight.k8s.names import ANNOTATION_CANARY_PERCENT, ANNOTATION_MODEL_NAMES, LABEL_VISIBILITY
from pilotlight.spec.component_fields import (
    DocumentContext,
    alias,
    annotations_of,
    check_component,
    check_name,
    pod_of,
    resolve_uri,
    service,
    split_containers,
)
from pilotlight.spec.field_tables import LLM
from pilotlight.spec.field_types import child_path, read, source_locations
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.service import (
    AdapterReference,
    Component,
    ModelSpec,
    NodeGroup,
    Reference,
    Role,
    ScalingMetric,
    Service,
)
from pilotlight.spec.yaml_nodes import Node

Json = Any
KIND: Final = "LLMInferenceService"
CONFIG: Final = f"{KIND}Config"
VERSIONS: Final = ("serving.kserve.io/v1alpha1", "serving.kserve.io/v1alpha2")
MAIN: Final = "main"  # KServe's name of the engine's container
_OURS, _VLLM, _DISAGGREGATED = "pilotlight", "vllm-text-generation", "vllm-text-generation-disaggregated"
_ARGUMENTS: Final = "VLLM_ADDITIONAL_ARGS"
_FLAG: Final = re.compile(r"^--[a-z_-]+")  # vLLM takes both spellings
_GPU: Final = "nvidia.com/gpu"  # of the runtime
_DEVICE_CLASS: Final = "serving.kserve.io/exp-dra-device-class"
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_PARALLELISM: Final = {
    "tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size", "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local", "dataRPCPort": "--data-parallel-rpc-port",
}  # fmt: skip
_REFUSED: Final = {
    "model.confidential": "use a model that is not encrypted",
    "router.ingress": "the platform's gateway routes to the service; leave it out",
    "router.route.http.refs": "the route is rendered; leave it out",
    "router.route.http.spec": "the route is rendered; leave it out",
    "router.route.group": "use canaryTrafficPercent of an InferenceService",
    "router.scheduler.pool.ref": "the pool is rendered; leave it out",
    "router.scheduler.config.ref": "use config.inline",
    "router.route.weight": "use canaryTrafficPercent of an InferenceService",
}
_KEDA_ONLY: Final = (
    "pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount", "fallback", "advanced",
)  # fmt: skip
_OF_WORKLOAD: Final = {
    "kvCacheOffloading": f"write --kv-transfer-config into {_ARGUMENTS}",
    "scaling.wva": "replicas follow the requests; set scaling.keda.triggers for another metric",
    **dict.fromkeys((f"scaling.keda.{name}" for name in _KEDA_ONLY), "the platform decides it"),
}
_WITHOUT_EFFECT: Final = {
    "model.criticality": "all requests have the same priority",
    "storageInitializer.enabled": "the model is downloaded, except from a volume or the image",
    "tracing": "set OTEL_EXPORTER_OTLP_ENDPOINT in the environment of the container",
    "router.gateway.refs": "the platform's gateway is used",
    "router.scheduler.tokenizer": "the scheduler compares bytes of the prompt",
    "router.scheduler.pool.spec": "the pool is rendered",
    **_OF_WORKLOAD,
    **{f"prefill.{path}": reason for path, reason in _OF_WORKLOAD.items()},
}  # fmt: skip


def merge_bases(node: Node, configs: Mapping[str, Node], problems: Problems) -> None:
    """Lay a document over the configs of its `baseRefs`, in place; the last one wins, and the document over all."""
    spec = node.get("spec")
    references = spec.get("baseRefs") if spec is not None else None
    if spec is None or references is None or not isinstance(references.value, list):
        return
    merged = Node(spec.location, {}, spec.key_location)
    for index, name in enumerate(each.text("name") for each in references.value):
        if name in configs:
            merged = _merged(merged, configs[name].get("spec") or merged)
        else:
            message = f"unknown {CONFIG} {name}; add its manifest to the files"
            problems.error("PL119", references.value[index].location, f"spec.baseRefs[{index}]", message)
    spec.value = _merged(merged, spec).copy().value
    assert isinstance(spec.value, dict)
    del spec.value["baseRefs"]


def _merged(base: Node, over: Node) -> Node:
    """Merge maps by key, and lists of named items such as containers and variables by name; else `over` replaces."""
    if isinstance(base.value, list) and isinstance(over.value, list):
        below, above = ({each.text("name"): each for each in value} for value in (base.value, over.value))
        named = {**below, **{name: _merged(below.get(name, each), each) for name, each in above.items()}}
        return over if "" in named else Node(over.location, list(named.values()), over.key_location)
    if isinstance(base.value, dict) and isinstance(over.value, dict):
        merged = {**base.value, **{key: _merged(base.value.get(key, each), each) for key, each in over.value.items()}}
        return Node(over.location, merged, over.key_location)
    return over


def read_service(node: Node, problems: Problems, namespace: str = "default") -> Service:
    """Return the service as far as it is valid; add its problems."""
    value = read(node, LLM.record(KIND), problems) or {}
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    workloads: dict[Role, str] = {"engine": "spec"}
    if "prefill" in spec:
        workloads = {"engine": "spec.prefill", "decoder": "spec"}
    context = DocumentContext(problems, _locations(node, workloads))
    check_name(metadata, context)
    _check_fields(spec, context)
    if _DEVICE_CLASS in annotations_of(metadata):
        path = child_path("metadata.annotations", _DEVICE_CLASS)
        context.error("PL119", path, "is not supported; use template.resourceClaims and resources.claims")
    components = {
        role: _component(role, spec["prefill"] if path == "spec.prefill" else spec, path, spec, context)
        for role, path in workloads.items()
    }
    router = spec.get("router", {})
    pool = "pool" in router.get("scheduler", {}) and "prefill" not in spec
    for field in (each for each in ("pool", "config", "template") if each in router.get("scheduler", {}) and not pool):
        reason = "the platform's router is the scheduler; a pool, without prefill, replaces it"
        context.warn("PL114", f"spec.router.scheduler.{field}", f"has no effect: {reason}")
    if "prefill" in spec or "scheduler" in router:
        components["router"] = _router(router.get("scheduler", {}), "prefill" in spec)
    percent = annotations_of(metadata).get(ANNOTATION_CANARY_PERCENT, "")
    entry: Role = "router" if "router" in components else "engine"
    if percent.isdecimal():
        components[entry] = replace(components[entry], canary_traffic_percent=int(percent))
    ours = is_predictor_image(str((components["engine"].runner or {}).get("image", "")))
    runtime = _OURS if ours else _DISAGGREGATED if "prefill" in spec else _VLLM
    return service(
        "ome",
        value,
        namespace,
        components,
        context,
        runtime=Reference(runtime, "ClusterServingRuntime", "ome.io"),
        adapters=_adapters(spec.get("model", {}), context),
        annotations={**_model_names(metadata, spec.get("model", {}).get("name", "")), **annotations_of(metadata)},
        labels={**({} if "route" in router else {LABEL_VISIBILITY: "cluster-local"}), **metadata.get("labels", {})},
        written={planned: written for written, planned in reversed(_aliases(workloads))},
    )


def _adapters(model: Mapping[str, Json], context: DocumentContext) -> tuple[AdapterReference, ...]:
    """Return KServe's `model.lora.adapters`, each under its own name."""
    adapters: list[AdapterReference] = []
    for index, each in enumerate(model.get("lora", {}).get("adapters", ())):
        path = f"spec.model.lora.adapters[{index}]"
        name = each.get("name", "")
        if name in {model.get("name"), *(adapter.name for adapter in adapters)}:
            context.error("PL104", f"{path}.name", f"{name} is the name of another model of this service; use another")
        uri = resolve_uri(each.get("uri", ""), context.location(f"{path}.uri"))
        adapters.append(AdapterReference(name, f"{path}.uri", uri))
    return tuple(adapters)


def _aliases(workloads: Mapping[Role, str]) -> list[tuple[str, str]]:
    """Return paths of the document, each with that of engine, decoder or router which later stages use."""
    return [("spec.router.scheduler", "spec.router"), ("spec.model", "spec.runtime")] + [
        pair for role, path in workloads.items() for pair in (
            (f"{path}.template.containers[0]", f"spec.{role}.runner"), (f"{path}.template", f"spec.{role}"),
            (f"{path}.worker.containers[0]", f"spec.{role}.worker.runner"), (f"{path}.worker", f"spec.{role}.worker"),
            (f"{path}.scaling.keda.triggers", f"spec.{role}.autoScaling.metrics"), (f"{path}.scaling", f"spec.{role}"),
            (f"{path}.annotations", f"spec.{role}.annotations"), ("spec.model.uri", f"spec.{role}.model.storageUri"),
        )
    ]  # fmt: skip


def _locations(node: Node, workloads: Mapping[Role, str]) -> dict[str, SourceLocation]:
    """Return source locations, also under the paths that later stages use."""
    locations = source_locations(node)
    for source, target in _aliases(workloads):
        alias(locations, source, target)
    return locations


def _check_fields(spec: Mapping[str, Json], context: DocumentContext) -> None:
    """Reject or warn about fields that have no meaning here."""
    for path, reason in _REFUSED.items():
        if _lookup(spec, path) is not None:
            context.error("PL119", f"spec.{path}", f"is not supported; {reason}")
    for path, reason in _WITHOUT_EFFECT.items():
        if _lookup(spec, path) not in (None, True):
            context.warn("PL114", f"spec.{path}", f"has no effect: {reason}")


def _lookup(value: Json, path: str) -> Json:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _component(
    role: Role, value: Mapping[str, Json], path: str, spec: Mapping[str, Json], context: DocumentContext
) -> Component:
    pod, main = split_containers(pod_of(value.get("template", {})), MAIN)
    model = spec.get("model", {})
    uri = resolve_uri(model.get("uri", ""), context.location("spec.model.uri"))
    runner, arguments = _engine(main, model.get("name", ""), value.get("parallelism", {}), path, context)
    scaling, replicas = value.get("scaling", {}), value.get("replicas")
    if scaling and replicas is not None:
        context.error("PL111", f"{path}.replicas", "excludes scaling; keep one of them")
    rollout = value.get("rolloutStrategy")
    result = Component(
        role,
        pod=pod,
        runner=runner,
        worker=_worker(value, path, context),
        model=ModelSpec("safetensors", storage_uri=uri, container={"args": arguments} if arguments else {}),
        min_replicas=scaling.get("minReplicas", 1) if scaling else replicas,
        max_replicas=scaling.get("maxReplicas", replicas),
        metrics=tuple(map(_metric, scaling.get("keda", {}).get("triggers", ()))),
        deployment_strategy={"type": "RollingUpdate", "rollingUpdate": rollout} if rollout else {},
        labels=value.get("labels", {}),
        annotations=value.get("annotations", {}),
    )
    check_component(result, f"spec.{role}", context)
    return result


def _engine(
    main: Mapping[str, Json], name: str, parallelism: Mapping[str, Json], path: str, context: DocumentContext
) -> tuple[dict[str, Json], list[str]]:
    """Return the engine's container, and arguments to add to those of its runtime.

    A container with a command is taken as it is. Else the arguments are vLLM's, as KServe hands them on.
    """
    runner = {key: value for key, value in main.items() if key != "name"}
    ours = is_predictor_image(str(main.get("image", "")))
    if parallelism and (ours or "command" in main):
        context.warn("PL114", f"{path}.parallelism", "has no effect: vLLM is not started by the runtime's command")
    if ours:
        named = [{"name": "INFERENCE_MODEL_NAME", "value": name}] if name else []
        return {**runner, "env": [*named, *main.get("env", ())]}, []
    resources = main.get("resources", {})
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    if resources and _GPU not in {**limits, **requests}:  # KServe's engines have the devices that the document names
        runner["resources"] = {**resources, "limits": {**limits, _GPU: "0"}}
    if "command" in main:
        return {"args": [], **runner}, []
    for probe in (each for each in _PROBES if each in main):
        context.warn("PL114", f"{path}.template", f"{probe} has no effect: without a command it is the runtime's")
    env = [each for each in main.get("env", ()) if each.get("name") != _ARGUMENTS]
    added = " ".join(each.get("value", "") for each in main.get("env", ()) if each.get("name") == _ARGUMENTS)
    try:
        written = (*shlex.split(added), *main.get("args", ()))
    except ValueError as error:
        context.error("PL104", f"{path}.template", f"{_ARGUMENTS} is {added!r}, must be words of a shell: {error}")
        written = ()
    runner = {key: value for key, value in runner.items() if key not in (*_PROBES, "args", "env", "ports")}
    arguments = [f"--served-model-name={name}"] if name else []
    arguments += [*_flags(parallelism), *(_FLAG.sub(lambda flag: flag[0].replace("_", "-"), each) for each in written)]
    return {**runner, **({"env": env} if env else {})}, arguments


def _model_names(metadata: Mapping[str, Json], served: str) -> dict[str, str]:
    """Return the names behind the gateway's /v1 where the engine's differs from the service's: the engine's first."""
    name = metadata.get("name", "")
    return {ANNOTATION_MODEL_NAMES: f"{served}, {name}"} if served not in ("", name) else {}


def _flags(parallelism: Mapping[str, Json]) -> Iterator[str]:
    """Yield vLLM's flags; without a tensor size a pipeline stage has one GPU, as in KServe."""
    sizes = {"tensor": 1, **parallelism} if parallelism else {}
    yield from (f"{flag}={sizes[name]}" for name, flag in _PARALLELISM.items() if name in sizes)
    if sizes.get("expert"):
        yield "--enable-expert-parallel"


def _worker(value: Mapping[str, Json], path: str, context: DocumentContext) -> NodeGroup | None:
    if "worker" not in value:
        return None
    sizes = value.get("parallelism", {})
    nodes = sizes["data"] // sizes.get("dataLocal", 1) if "data" in sizes else sizes.get("pipeline", 1)
    if nodes < 2:
        message = "needs parallelism for 2 nodes or more: pipeline stages, or data of which each node has dataLocal"
        context.error("PL119", f"{path}.worker", message)
    pod, main = split_containers(pod_of(value["worker"]), MAIN)
    dropped = () if "command" in main else ("args", *_PROBES)
    runner = {key: entry for key, entry in main.items() if key not in ("name", *dropped)}
    return NodeGroup(pod, runner, max(nodes - 1, 1))


def _metric(trigger: Mapping[str, Json]) -> ScalingMetric:
    """Return a trigger of KEDA; Prometheus' value is one for each replica, unless it is a Value."""
    metadata, kind = trigger.get("metadata", {}), trigger.get("type", "")
    if kind != "prometheus":
        return ScalingMetric("resource", kind, trigger.get("metricType", "Utilization"), metadata.get("value", ""))
    return ScalingMetric(
        "external",
        kind,
        trigger.get("metricType", "AverageValue"),
        metadata.get("threshold", ""),
        query=metadata.get("query", ""),
        server_address=metadata.get("serverAddress", ""),
        authentication=trigger.get("authenticationRef", {}),
        auth_modes=metadata.get("authModes", ""),
    )


def _router(scheduler: Mapping[str, Json], disaggregated: bool) -> Component:
    replicas = scheduler.get("replicas")
    strategy = "prefill_decode" if disaggregated else "inference_pool" if "pool" in scheduler else "prefix_aware"
    template = scheduler.get("template", {}) if strategy == "inference_pool" else {}
    pod, main = split_containers(pod_of(template), MAIN)
    plugins = scheduler.get("config", {}).get("inline")
    return Component(
        "router",
        min_replicas=replicas,
        max_replicas=replicas,
        labels=scheduler.get("labels", {}),
        annotations=scheduler.get("annotations", {}),
        pod=pod,
        runner={key: value for key, value in main.items() if key != "name"} or None,
        config={"routing_strategy": strategy, **({"plugins": json.dumps(plugins)} if plugins else {})},
    )
