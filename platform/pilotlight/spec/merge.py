"""A runtime's pod and container with the component's fields over them, as each project merges them. Pure.

Both merge strategically: maps by key, `env`, `volumes`, `ports` and the like by their own key, all other lists as a
whole. They differ in `args`: OME's are replaced by the user's, KServe's come before the user's.
plan() calls `merge_component` after select_runtime, then `expand` (placeholders.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pilotlight.spec.model import Component, NodeGroup, Runtime
from pilotlight.spec.sizes import amount

Json = Any
Object = dict[str, Json]
# What a list's items are told apart by (the patchMergeKey of Kubernetes' types); any other list is replaced whole.
MERGE_KEYS: Final = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "imagePullSecrets": "name",
    "resourceClaims": "name", "claims": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath",
    "ports": "containerPort", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey",
}  # fmt: skip
# One of these excludes the others, so the user's choice takes the runtime's away rather than joining it.
_EXCLUSIVE: Final = ({"exec", "httpGet", "tcpSocket", "grpc"}, {"value", "valueFrom"})
MAIN_CONTAINER: Final = {"ome": "ome-container", "kserve": "kserve-container"}
WORKER_CONTAINER: Final = "worker-container"
_NOT_POD: Final = frozenset((
    "runner", "leader", "worker", "size", "minReplicas", "maxReplicas", "scaleTarget", "scaleMetric", "config",
    "containerConcurrency", "timeoutSeconds", "canaryTrafficPercent", "labels", "annotations", "minAvailable",
    "maxUnavailable", "deploymentStrategy", "kedaConfig", "acceleratorOverride", "pipelineParallelSize",
    "tensorParallelSize", "resources",
))  # fmt: skip


class Merged(NamedTuple):
    """`pod` holds the pod's fields and, under `containers`, the sidecars only; `container` is the main one."""

    pod: Object
    container: Object


def strategic(base: Mapping[str, Json], over: Mapping[str, Json]) -> Object:
    """`over` laid upon `base`; neither is changed."""
    merged = {key: value for key, value in base.items() if not _displaced(key, over)}
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = strategic(old, value)
        elif isinstance(old, list) and isinstance(value, list) and key in MERGE_KEYS:
            merged[key] = _by_key(old, value, MERGE_KEYS[key], whole=key == "volumes")
        else:
            merged[key] = value
    return merged


def _displaced(key: str, over: Mapping[str, Json]) -> bool:
    return key not in over and any(key in group and group & over.keys() for group in _EXCLUSIVE)


def _by_key(base: list[Json], over: list[Json], key: str, whole: bool) -> list[Json]:
    """The base's order, then what is new. A volume of the same name is another volume, not a mixture of two."""
    found = {item.get(key): item for item in base}
    for item in over:
        old = found.get(item.get(key))
        found[item.get(key)] = item if old is None or whole else strategic(old, item)
    return list(found.values())


def merge_component(runtime: Runtime | None, component: Component) -> Merged:
    """Pod and main container of a component. Without a runtime the component must bring its container."""
    if runtime is None or runtime.group == "kserve":
        return _kserve(runtime, component)
    config = _config(runtime, component)
    base = _split({key: value for key, value in config.items() if key not in _NOT_POD}, MAIN_CONTAINER["ome"])
    resources = {"resources": config["resources"]} if config.get("resources") else {}
    base = _over(base, {}, strategic(resources, config.get("runner") or {}))
    return _named(_over(base, component.pod, component.runner), MAIN_CONTAINER["ome"])


def merge_group(runtime: Runtime | None, component: Component, part: str) -> Merged:
    """Leader or worker of several nodes. What neither it nor the runtime says, it has from the component; a worker
    without a container of its own runs the leader's image."""
    own = component.leader if part == "leader" else component.worker
    group = own if own is not None else NodeGroup()
    if runtime is not None and runtime.group == "kserve":
        return _kserve_group(runtime, component, group) if part == "worker" else merge_component(runtime, component)
    base = merge_component(runtime, component)
    if part == "worker" and group.runner is None and not _part(runtime, component, "worker").get("runner"):
        base = merge_group(runtime, component, "leader")
    config = _part(runtime, component, part)
    pod = {key: value for key, value in config.items() if key not in _NOT_POD}
    return _over(_over(base, pod, config.get("runner")), group.pod, group.runner)


def group_size(runtime: Runtime | None, component: Component) -> int:
    """Workers beside the leader: the component's word, else the runtime's, else one; 0 without a group."""
    config = _part(runtime, component, "worker")
    if component.worker is not None and component.worker.size:
        return component.worker.size
    if runtime is not None and runtime.group == "kserve":
        return max(int(config.get("pipelineParallelSize", 1)) - 1, 0) if config else 0
    return int(config.get("size", 1)) if config or component.worker is not None else 0


def with_runtime_defaults(runtime: Runtime | None, component: Component) -> Component:
    """OME: what engineConfig says beside the pod (replicas, scaling, labels …) holds where the component is silent."""
    if runtime is None or runtime.group != "ome":
        return component
    config = _config(runtime, component)
    told: dict[str, Json] = {}
    for field, key in _EXTENSION.items():
        if getattr(component, field) is None and config.get(key) is not None:
            told[field] = config[key]
    told["labels"] = {**config.get("labels", {}), **component.labels}
    told["annotations"] = {**config.get("annotations", {}), **component.annotations}
    told["config"] = {**config.get("config", {}), **component.config}
    told["deployment_strategy"] = component.deployment_strategy or config.get("deploymentStrategy", {})
    for part in ("leader", "worker"):
        if getattr(component, part) is None and part in config:
            told[part] = NodeGroup(size=int(config[part].get("size", 1 if part == "worker" else 0)))
    return replace(component, **told)


_EXTENSION: Final = {
    "min_replicas": "minReplicas", "max_replicas": "maxReplicas", "scale_target": "scaleTarget",
    "scale_metric": "scaleMetric", "container_concurrency": "containerConcurrency",
    "timeout_seconds": "timeoutSeconds", "canary_traffic_percent": "canaryTrafficPercent",
    "min_available": "minAvailable", "max_unavailable": "maxUnavailable",
}  # fmt: skip


def _config(runtime: Runtime, component: Component) -> Mapping[str, Json]:
    """OME's engineConfig, decoderConfig or routerConfig; an engine without one has the runtime's own containers."""
    configs = {"engine": runtime.engine or runtime.pod, "decoder": runtime.decoder, "router": runtime.router}
    return configs.get(component.role, {})


def _part(runtime: Runtime | None, component: Component, part: str) -> Mapping[str, Json]:
    if runtime is None:
        return {}
    if runtime.group == "kserve":
        return runtime.workers if part == "worker" else {}
    found: Mapping[str, Json] = _config(runtime, component).get(part) or {}
    return found or (runtime.workers if part == "worker" and component.role == "engine" else {})


def _kserve(runtime: Runtime | None, component: Component) -> Merged:
    """The runtime's kserve-container under predictor.model; other containers are merged by name, or added."""
    main = MAIN_CONTAINER["kserve"]
    base = _split(runtime.pod, main) if runtime is not None else Merged({}, {})
    if component.model is not None:
        over = dict(component.model.container)
        container = _agreed(strategic(base.container, over), over)
        args = [*base.container.get("args", ()), *over.get("args", ())]
        return _named(Merged(strategic(base.pod, component.pod), container | ({"args": args} if args else {})), main)
    mine = _split(component.pod, main) if component.runner is None else Merged(dict(component.pod), {})
    merged = _over(base, mine.pod, strategic(mine.container, component.runner or {}))
    return _named(merged, main)


def _kserve_group(runtime: Runtime, component: Component, group: NodeGroup) -> Merged:
    config = {key: value for key, value in runtime.workers.items() if key not in _NOT_POD}
    base, mine = _split(config, WORKER_CONTAINER), _split(group.pod, WORKER_CONTAINER)
    args = [*base.container.get("args", ()), *mine.container.get("args", ())]
    merged = _over(base, mine.pod, strategic(mine.container, group.runner or {}))
    container = merged.container | ({"args": args} if args else {})
    return _named(Merged(merged.pod, container), WORKER_CONTAINER)


def _split(pod: Mapping[str, Json], main: str) -> Merged:
    """The main container apart from the rest: the one with its name, else the first."""
    containers = list(pod.get("containers") or ())
    chosen = next((item for item in containers if item.get("name") == main), containers[0] if containers else {})
    rest = {key: value for key, value in pod.items() if key != "containers"}
    sidecars = [item for item in containers if item is not chosen]
    return Merged(rest | ({"containers": sidecars} if sidecars else {}), dict(chosen))


def _over(base: Merged, pod: Mapping[str, Json], container: Mapping[str, Json] | None) -> Merged:
    """A pod's containers that bear the main one's name mean the main one."""
    main = base.container.get("name")
    same = next((item for item in pod.get("containers") or () if main and item.get("name") == main), None)
    if same is not None:
        pod = {**pod, "containers": [item for item in pod["containers"] if item is not same]}
        container = strategic(same, container or {})
    merged = strategic(base.container, container or {})
    return Merged(strategic(base.pod, pod), _agreed(merged, container or {}))


def _agreed(container: Object, own: Mapping[str, Json]) -> Object:
    """A request above its limit is refused by every cluster, and devices must be equal: where the user gave one of
    the two, the runtime's other follows it. (Both projects render the refused pod.)"""
    said = own.get("resources") or {}
    resources = container.get("resources") or {}
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for name in requests.keys() & limits.keys():
        given = [part for part in ("requests", "limits") if name in (said.get(part) or {})]
        asked, most = amount(str(requests[name])), amount(str(limits[name]))
        conflict = asked is not None and most is not None and (asked > most or ("/" in name and asked != most))
        if conflict and given == ["requests"]:
            limits[name] = requests[name]
        elif conflict and given == ["limits"]:
            requests[name] = limits[name]
    return (
        container | {"resources": resources | {"requests": requests, "limits": limits}}
        if requests and limits
        else container
    )


def _named(merged: Merged, name: str) -> Merged:
    """A container needs a name; both projects give the main one theirs."""
    return merged if merged.container.get("name") else Merged(merged.pod, {"name": name, **merged.container})
