"""Pod and main container of a component: its runtime's, overlaid by its own as OME and KServe do it. Pure.

Both use strategic merge: maps by key, `env`, `volumes`, `ports` and the like by their merge key, other lists are
replaced. They differ in `args`: OME replaces the runtime's by the user's, KServe puts the runtime's first.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pilotlight.catalogue.document_types import quantity_value
from pilotlight.spec.component_fields import split_containers
from pilotlight.spec.service import Component, NodeGroup, Runtime, SupportedFormat

Json = Any
Object = dict[str, Json]
# patchMergeKey of Kubernetes' list types; any other list is replaced.
MERGE_KEYS: Final = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "imagePullSecrets": "name",
    "resourceClaims": "name", "claims": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath",
    "ports": "containerPort", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
}  # fmt: skip
# Mutually exclusive fields: the user's choice removes the runtime's instead of joining it.
_EXCLUSIVE: Final = ({"exec", "httpGet", "tcpSocket", "grpc"}, {"value", "valueFrom"})
MAIN_CONTAINER: Final = {"ome": "ome-container", "kserve": "kserve-container"}
WORKER_CONTAINER: Final = "worker-container"
PARALLELISM: Final = "PARALLELISM_SIZE"
_TAG: Final = re.compile(r":[\w.\-]+$")
# KServe publishes these with `-gpu` in the tag; vLLM's CPU build is a repository of its own.
_GPU_TAGGED: Final = ("tensorflow-serving", "torchserve", "huggingfaceserver")
PARALLEL_FLAGS: Final = {
    "tensorParallelSize": ("--tp-size", "--tp", "--tensor-parallel-size"),
    "pipelineParallelSize": ("--pp-size", "--pp", "--pipeline-parallel-size"),
    "dataParallelSize": ("--dp-size", "--dp", "--data-parallel-size"),
}
# How an engine finds the other pods of its group; LeaderWorkerSet sets the variables.
_NODE_FLAGS: Final = {
    "sglang": ("--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)",
               "--dist-init-addr=$(LWS_LEADER_ADDRESS):5757"),
    "vllm": ("--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)"),
}  # fmt: skip
_NODE_MARKS: Final = ("LWS_", "RAY_", "ray start", "--nnodes", "--node-rank", "--headless")
_EXTENSION: Final = {
    "min_replicas": "minReplicas", "max_replicas": "maxReplicas", "scale_target": "scaleTarget",
    "scale_metric": "scaleMetric", "container_concurrency": "containerConcurrency",
    "timeout_seconds": "timeoutSeconds", "canary_traffic_percent": "canaryTrafficPercent",
    "min_available": "minAvailable", "max_unavailable": "maxUnavailable",
}  # fmt: skip
_NOT_POD: Final = frozenset((
    "runner", "leader", "worker", "size", "minReplicas", "maxReplicas", "scaleTarget", "scaleMetric", "config",
    "containerConcurrency", "timeoutSeconds", "canaryTrafficPercent", "labels", "annotations", "minAvailable",
    "maxUnavailable", "deploymentStrategy", "kedaConfig", "acceleratorOverride", "pipelineParallelSize",
    "tensorParallelSize", "resources",
))  # fmt: skip


class MergedPod(NamedTuple):
    """A pod spec whose `containers` are the sidecars only, and its main container."""

    pod: Object
    container: Object


def strategic_merge(base: Mapping[str, Json], over: Mapping[str, Json]) -> Object:
    """Return `base` overlaid by `over`; neither is changed."""
    displaced = set().union(*(group for group in _EXCLUSIVE if group & over.keys())) - over.keys()
    merged = {key: value for key, value in base.items() if key not in displaced}
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = strategic_merge(old, value)
        elif isinstance(old, list) and isinstance(value, list) and key in MERGE_KEYS:
            merge_key = MERGE_KEYS[key]
            items = {item.get(merge_key): item for item in old}  # in the order of the base
            for item in value:
                same = items.get(item.get(merge_key))
                # A volume is not a mixture of two.
                items[item.get(merge_key)] = item if same is None or key == "volumes" else strategic_merge(same, item)
            merged[key] = list(items.values())
        else:
            merged[key] = value
    return merged


def merge_component(runtime: Runtime | None, component: Component) -> MergedPod:
    """Return pod and main container of a component. Without a runtime the component must bring its container."""
    if runtime is None or runtime.group == "kserve":
        return _kserve(runtime, component)
    config = _config(runtime, component)
    pod = {key: value for key, value in config.items() if key not in _NOT_POD}
    base = MergedPod(*split_containers(pod, MAIN_CONTAINER["ome"]))
    resources = {"resources": config["resources"]} if config.get("resources") else {}
    base = _overlay(base, {}, strategic_merge(resources, config.get("runner") or {}))
    merged = _with_name(_overlay(base, component.pod, component.runner), MAIN_CONTAINER["ome"])
    added = component.model.container.get("args", ()) if component.model is not None else ()
    args = {"args": merge_args(merged.container.get("args", ()), added)} if added else {}
    return MergedPod(merged.pod, {**merged.container, **args})


def merge_group(runtime: Runtime | None, component: Component, part: str) -> MergedPod:
    """Return pod and container of the leader or worker of a multi-node component.

    Defaults come from the component; a worker without a container of its own runs the leader's image.
    """
    own = component.leader if part == "leader" else component.worker
    group = own if own is not None else NodeGroup()
    if runtime is not None and runtime.group == "kserve":
        return _kserve_group(runtime, component, group) if part == "worker" else merge_component(runtime, component)
    base = merge_component(runtime, component)
    if part == "worker" and group.runner is None and not _group_config(runtime, component, "worker").get("runner"):
        base = merge_group(runtime, component, "leader")
    config = _group_config(runtime, component, part)
    pod = {key: value for key, value in config.items() if key not in _NOT_POD}
    return _overlay(_overlay(base, pod, config.get("runner")), group.pod, group.runner)


def group_size(runtime: Runtime | None, component: Component) -> int:
    """Return the number of workers: the component's, else the runtime's, else one; 0 without a group."""
    config = _group_config(runtime, component, "worker")
    if component.worker is not None and component.worker.size:
        return component.worker.size
    if runtime is not None and runtime.group == "kserve":
        return max(int(config.get("pipelineParallelSize", 1)) - 1, 0) if config else 0
    return int(config.get("size", 1)) if config or component.worker is not None else 0


def with_runtime_defaults(runtime: Runtime | None, component: Component) -> Component:
    """Fill unset fields of an OME component (replicas, scaling, labels …) from the runtime's engineConfig."""
    if runtime is None or runtime.group != "ome":
        return component
    config = _config(runtime, component)
    defaults: dict[str, Json] = {}
    for field, key in _EXTENSION.items():
        if getattr(component, field) is None and config.get(key) is not None:
            defaults[field] = config[key]
    defaults["labels"] = {**config.get("labels", {}), **component.labels}
    defaults["annotations"] = {**config.get("annotations", {}), **component.annotations}
    defaults["config"] = {**config.get("config", {}), **component.config}
    defaults["deployment_strategy"] = component.deployment_strategy or config.get("deploymentStrategy", {})
    for part in ("leader", "worker"):
        if getattr(component, part) is None and part in config:
            defaults[part] = NodeGroup(size=int(config[part].get("size", 1 if part == "worker" else 0)))
    return replace(component, **defaults)


def _config(runtime: Runtime, component: Component) -> Mapping[str, Json]:
    """Return OME's engineConfig, decoderConfig or routerConfig; an engine without one has the runtime's containers."""
    configs = {"engine": runtime.engine or runtime.pod, "decoder": runtime.decoder, "router": runtime.router}
    return configs.get(component.role, {})


def _group_config(runtime: Runtime | None, component: Component, part: str) -> Mapping[str, Json]:
    if runtime is None:
        return {}
    if runtime.group == "kserve":
        return runtime.workers if part == "worker" else {}
    config: Mapping[str, Json] = _config(runtime, component).get(part) or {}
    return config or (runtime.workers if part == "worker" and component.role == "engine" else {})


def _kserve(runtime: Runtime | None, component: Component) -> MergedPod:
    """Merge predictor.model into the runtime's kserve-container; other containers are merged by name, or added."""
    main = MAIN_CONTAINER["kserve"]
    base = MergedPod(*split_containers(runtime.pod if runtime is not None else {}, main))
    if component.model is not None:
        over = dict(component.model.container)
        container = _consistent_resources(strategic_merge(base.container, over), over)
        args = [*base.container.get("args", ()), *over.get("args", ())]
        container |= {"args": args} if args else {}
        return _with_name(MergedPod(strategic_merge(base.pod, component.pod), container), main)
    pod, container = split_containers(component.pod, main) if component.runner is None else (component.pod, {})
    merged = _overlay(base, pod, strategic_merge(container, component.runner or {}))
    return _with_name(merged, main)


def _kserve_group(runtime: Runtime, component: Component, group: NodeGroup) -> MergedPod:
    config = {key: value for key, value in runtime.workers.items() if key not in _NOT_POD}
    base = MergedPod(*split_containers(config, WORKER_CONTAINER))
    pod, own = split_containers(group.pod, WORKER_CONTAINER)
    args = [*base.container.get("args", ()), *own.get("args", ())]
    merged = _overlay(base, pod, strategic_merge(own, group.runner or {}))
    container = merged.container | ({"args": args} if args else {})
    return _with_name(MergedPod(merged.pod, container), WORKER_CONTAINER)


def _overlay(base: MergedPod, pod: Mapping[str, Json], container: Mapping[str, Json] | None) -> MergedPod:
    """Overlay pod and container; a container of the pod with the main one's name is the main one."""
    main = base.container.get("name")
    same = next((item for item in pod.get("containers") or () if main and item.get("name") == main), None)
    if same is not None:
        pod = {**pod, "containers": [item for item in pod["containers"] if item is not same]}
        container = strategic_merge(same, container or {})
    merged = strategic_merge(base.container, container or {})
    return MergedPod(strategic_merge(base.pod, pod), _consistent_resources(merged, container or {}))


def _consistent_resources(container: Object, own: Mapping[str, Json]) -> Object:
    """Adjust the runtime's request or limit where the user set only the other.

    The API server rejects a request above its limit, and unequal ones of a device. (Both projects render such a pod.)
    """
    own_resources = own.get("resources") or {}
    resources = container.get("resources") or {}
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for name in requests.keys() & limits.keys():
        set_in = [part for part in ("requests", "limits") if name in (own_resources.get(part) or {})]
        request, limit = quantity_value(str(requests[name])), quantity_value(str(limits[name]))
        conflict = request is not None and limit is not None and (request > limit or ("/" in name and request != limit))
        if conflict and set_in == ["requests"]:
            limits[name] = requests[name]
        elif conflict and set_in == ["limits"]:
            requests[name] = limits[name]
    adjusted = {"resources": resources | {"requests": requests, "limits": limits}}
    return container | adjusted if requests and limits else container


def _with_name(merged: MergedPod, name: str) -> MergedPod:
    """Give the main container the project's name if it has none."""
    return merged if merged.container.get("name") else MergedPod(merged.pod, {"name": name, **merged.container})


def image_for(image: str, runtime: Runtime, runtime_version: str, gpus: int) -> str:
    """Return KServe's image: with tag `runtimeVersion`, else the GPU or CPU build of the server type. Digests stay."""
    if "@sha256:" in image or runtime.group != "kserve":
        return image
    if runtime_version:
        return _TAG.sub("", image) + f":{runtime_version}"
    if gpus and runtime.server_type in _GPU_TAGGED and _TAG.search(image) and not image.endswith("-gpu"):
        return f"{image}-gpu"
    tag = _TAG.search(image)
    if not gpus and runtime.server_type == "vllmserver" and tag and not image[: tag.start()].endswith("-cpu"):
        return f"{image[: tag.start()]}-cpu{tag[0]}"
    return image


def with_parallelism(container: Mapping[str, Json], gpus: int, nodes: int) -> Object:
    """Set OME's PARALLELISM_SIZE: devices of all pods of a group. Eight on each of two nodes make 16."""
    if not gpus:
        return dict(container)
    return strategic_merge(container, {"env": [{"name": PARALLELISM, "value": str(gpus * nodes)}]})


def knows_its_nodes(*containers: Mapping[str, Json]) -> bool:
    """Return whether a container of a group refers to the group: its variables, Ray, or the flags of an engine."""
    return any(mark in str(containers) for mark in _NODE_MARKS)


def node_engine(container: Mapping[str, Json]) -> str:
    """Return the engine that takes its rank by flags; empty if it is unknown, or started by a shell's script."""
    command = container.get("command") or [""]
    words = " ".join((container.get("image") or "", *command))
    # vLLM's module api_server ignores --headless, unlike `vllm serve`.
    ranked = not command[0].endswith("sh") and "api_server" not in words
    return next((name for name in _NODE_FLAGS if name in words and ranked), "")


def with_node_rank(container: Mapping[str, Json], engine: str, worker: bool) -> Object:
    """Add the flags by which the engine's pods of a group find each other; vLLM's workers serve no HTTP."""
    own = ("--headless",) if worker and engine == "vllm" else ()
    return {**container, "args": [*(container.get("args") or ()), *_NODE_FLAGS[engine], *own]}


def with_accelerator_config(container: Mapping[str, Json], entry: SupportedFormat | None, cls: str) -> Object:
    """Apply the overrides of a format for an accelerator class: parallelism, arguments by flag, variables by name."""
    config = (entry.accelerators.get(cls) if entry is not None else None) or {}
    tuned = dict(container)
    sizes = config.get("tensorParallelismOverride") or {}
    for field, flags in PARALLEL_FLAGS.items():
        if sizes.get(field):
            tuned = {**tuned, **_with_flag(tuned, flags, str(sizes[field]))}
    if config.get("runtimeArgsOverride"):
        tuned["args"] = merge_args(tuned.get("args", ()), config["runtimeArgsOverride"])
    variables = [{"name": name, "value": value} for name, value in (config.get("environmentOverride") or {}).items()]
    return strategic_merge(tuned, {"env": variables}) if variables else tuned


def _with_flag(container: Mapping[str, Json], flags: Sequence[str], value: str) -> Object:
    """Replace a flag's value in command and args, written as one word or as two."""
    changed = {}
    for part in ("command", "args"):
        words = list(container.get(part, ()))
        for at, word in enumerate(words):
            flag, joined, _ = word.partition("=")
            if flag in flags and joined:
                words[at] = f"{flag}={value}"
            elif flag in flags and at + 1 < len(words):
                words[at + 1] = value
        if words:
            changed[part] = words
    return changed


def merge_args(base: Sequence[str], over: Sequence[str]) -> list[str]:
    """Merge arguments by flag: `over` replaces in place what it repeats and appends the rest."""
    merged = {group[0].partition("=")[0]: group for group in argument_groups(base)}
    merged |= {group[0].partition("=")[0]: group for group in argument_groups(over)}
    return [word for group in merged.values() for word in group]


def argument_groups(words: Sequence[str]) -> list[list[str]]:
    """Group each flag with the value that follows it; other words stand alone."""
    groups: list[list[str]] = []
    for word in words:
        last = groups[-1] if groups else [""]
        takes_value = len(last) == 1 and last[0].startswith("-") and "=" not in last[0]
        if takes_value and not word.startswith("-"):
            last.append(word)
        else:
            groups.append([word])
    return groups
