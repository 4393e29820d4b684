"""Pod templates, complete as they are applied: containers, resources, volumes, and checks of the merged result.

Precedence: the user's document, the runtime, our defaults. The revision's name is a hash of the template, so it must be
deterministic.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.catalogue.runtime_merge import strategic_merge
from pilotlight.contract import GRPC_PORT, HTTP_PORT, METRICS_PORT
from pilotlight.k8s import names, quantities
from pilotlight.k8s.knative_features import PROBE_FIELDS
from pilotlight.k8s.model_pins import encode
from pilotlight.plan import document_annotations, environment_variables, model_pins, router
from pilotlight.plan.capacity.memory_fit import gpu_share
from pilotlight.plan.component_context import PlanContext, written_containers
from pilotlight.plan.model_storage import ModelStorage, decide_storage, location, model_uris
from pilotlight.plan.pod_security import Level, container_context, decide_level, fit_to_knative, pod_context
from pilotlight.plan.probes import PROBES, decide_probes
from pilotlight.plan.types import Capabilities, DecisionLog

Json = Any
LEAST_MEMORY: Final = 1 << 30
SHM_BYTES: Final = 1 << 30
SHM_VOLUME: Final = "shared-memory"
SHM_PATH: Final = "/dev/shm"  # noqa: S108 - the mount point that every CUDA program knows
SCRATCH: Final = "scratch"
COLLOCATED: Final = "transformer-container"
ANNOTATED_TARGETS: Final = ("docker", "slurm", "lepton", "brev")  # named in annotations of pod templates
_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)$", re.IGNORECASE
)
_PASSWORD: Final = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A pod template with its serving port and security level."""

    template: dict[str, Json]
    port: int
    port_name: str
    metrics_port: int | None
    level: Level
    worker: dict[str, Json] | None = None


def decide_template(context: PlanContext, timeout_s: int, account: str, log: DecisionLog) -> PodTemplate:
    storage = decide_storage(context, log)
    environment_variables.decide_warmup(context, log)
    level = decide_level(context, list(storage.volumes), log)
    port, port_name = serving_port(context)
    container = _main_container(context, storage, level, port, port_name, timeout_s, log)
    spec = _spec(context, context.choice.pod, container, storage, level, timeout_s, account)
    if context.serverless:
        spec = fit_to_knative(context, spec, {"name": port_name, "containerPort": port}, log)
    worker = _worker(context, storage, level, timeout_s, account) if context.mode == "multi-node" else None
    check_pod(context, spec, "", log)
    if worker is not None:
        check_pod(context, worker["spec"], "worker", log)
    metrics = METRICS_PORT if context.choice.is_pilotlight and not context.choice.gateway else None
    return PodTemplate({"metadata": metadata(context), "spec": spec}, port, port_name, metrics, level, worker)


def metadata(context: PlanContext) -> dict[str, Json]:
    """Return labels and annotations of the pods; our labels win, since selectors use them."""
    service, component = context.service, context.component
    ours = names.pod_labels(service.group, service.name, component.role, context.name)
    labels = {**service.labels, **component.labels, **ours}
    labels.pop(names.LABEL_VISIBILITY, None)
    written = {**service.annotations, **component.annotations}
    pins = encode(model_pins.pins_of(context, model_uris(context)))
    added = {name: service.annotations[name] for name in names.POD_ANNOTATIONS if name in service.annotations}
    if added.get(names.ANNOTATION_GPU_MEMORY) == "auto":
        added[names.ANNOTATION_GPU_MEMORY] = gpu_share(context.choice) or "auto"
    added |= {names.ANNOTATION_PINS: pins} if pins else {}
    target = _target_annotations(context.capabilities)
    return {"labels": labels, "annotations": {**document_annotations.for_pods(written), **added, **target}}


def _target_annotations(capabilities: Capabilities) -> dict[str, str]:
    """Return the annotations of the target that runs it; none for processes of this machine and for clusters."""
    if capabilities.target not in ANNOTATED_TARGETS:
        return {}
    options = dict(sorted(capabilities.target_options.items()))
    written = {names.ANNOTATION_TARGET_OPTIONS: json.dumps(options)} if options else {}
    return {names.ANNOTATION_TARGET: capabilities.target, **written}


def serving_port(context: PlanContext) -> tuple[int, str]:
    """Return number and name (h2c or http1) of the serving port. The first port of a foreign container wins."""
    declared = _serving_container(context).get("ports") or ()
    protocol = context.component.model.protocol if context.component.model is not None else ""
    grpc = protocol.startswith("grpc")
    if declared and not context.choice.is_pilotlight:
        name = str(declared[0].get("name", ""))
        return int(declared[0]["containerPort"]), "h2c" if grpc or name.startswith(("h2c", "grpc")) else "http1"
    return (GRPC_PORT, "h2c") if grpc and context.choice.is_pilotlight else (HTTP_PORT, "h2c" if grpc else "http1")


def check_pod(context: PlanContext, spec: Mapping[str, Json], group: str, log: DecisionLog) -> None:
    """Report conflicts of a pod spec. `group` is `worker` for workers of a multi-node component, else empty."""
    prefix = f"{group}." if group else ""
    field = "runner" if context.service.group == "ome" else "model"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for name, request, limit in _overcommitted(container):
            message = f"requests {request} of {name} and limits it to {limit}; devices are not shared, use one number"
            log.error("PL362", context.path(f"{prefix}{field}.resources"), message)
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        for name in sorted({mount["name"] for mount in container.get("volumeMounts") or ()} - volumes):
            message = f"{name} is mounted but is not a volume of the pod; add it to {context.path(f'{prefix}volumes')}"
            log.error("PL363", context.path(f"{prefix}{field}.volumeMounts"), message)
        for name, value in literal_secrets(container):
            uri, place = location(context)
            path = place if value == uri else context.path(f"{prefix}{field}.env")
            message = f"{name} has a credential in plain text; use a Secret"
            log.warn("PL368", path, message)
        for probe in sorted(PROBE_FIELDS & container.keys()):
            for handler in ("httpGet", "tcpSocket"):
                action = container[probe].get(handler)
                if action is not None and "port" not in action:  # those of the main container have been given one
                    message = f"{probe}.{handler} of {container['name']} names no port"
                    message += ", and only the main container's is known; add it"
                    log.error("PL366", context.path(f"{prefix}containers"), message)


def literal_secrets(container: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield name and value of variables whose value is a credential: by their name, or a URL with a password."""
    for variable in container.get("env") or ():
        name, value = str(variable.get("name", "")), str(variable.get("value") or "")
        if value and not value.startswith("$(") and (_SECRET_NAME.search(name) or _PASSWORD.search(value)):
            yield name, value


def _overcommitted(container: Mapping[str, Json]) -> Iterator[tuple[str, Json, Json]]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    for name, request in (resources.get("requests") or {}).items():
        limit = limits.get(name)
        if quantities.is_gpu(name) and quantities.quantity_or_zero(request) != quantities.quantity_or_zero(limit):
            yield name, request, limit


def decide_resources(context: PlanContext, log: DecisionLog) -> dict[str, Json]:
    """Return the document's resources with defaults: a cpu request for the HPA, memory for the model, device limits."""
    written = context.choice.container.get("resources") or {}
    requests, limits = dict(written.get("requests") or {}), dict(written.get("limits") or {})
    for name in [name for name in requests if quantities.is_gpu(name)]:
        # The API server rejects a device without a limit, and OME's documents often have only the request.
        limits.setdefault(name, requests[name])
    requests.setdefault("cpu", limits.get("cpu", str(max(1, quantities.gpu_count(context.choice.container)))))
    if "memory" not in requests and "memory" not in limits:
        limits["memory"] = requests["memory"] = _memory(context, log)
    requests.setdefault("memory", limits.get("memory"))
    resources = with_memory(context, {**written, "requests": requests, **({"limits": limits} if limits else {})})
    if (memory := resources["requests"]["memory"]) != requests["memory"]:
        reason = f"{_twice(context)}; the runtime requests {requests['memory']}"
        log.decide(context.component.role, "memory", memory, reason)
    _check_memory(context, resources.get("limits") or {}, log)
    return resources


def with_memory(context: PlanContext, resources: Mapping[str, Json]) -> dict[str, Json]:
    """Raise the memory of a runtime's container, chosen for some model, to twice this one's; the document's is kept."""
    least = 2 * context.model_bytes // context.pods
    written = {memory for container in written_containers(context.component) for memory in _memories(container)}
    if written & _memories({"resources": resources}):
        return dict(resources)
    raised = {
        part: {"memory": f"{-(-least // 2**30)}Gi"}
        for part in ("requests", "limits")
        if 0 < quantities.quantity_or_zero((resources.get(part) or {}).get("memory", 0)) < least
    }
    return strategic_merge(resources, raised)


def _memories(container: Mapping[str, Json]) -> set[str]:
    parts = (container.get("resources") or {}).values()
    return {str(part["memory"]) for part in parts if isinstance(part, Mapping) and "memory" in part}


def _twice(context: PlanContext) -> str:
    shared = f", by {context.pods} pods" if context.pods > 1 else ""
    return f"twice the model's {context.model_bytes / 1e9:.1f} GB{shared}"


def _memory(context: PlanContext, log: DecisionLog) -> str:
    if context.choice.gateway:
        size, reason = LEAST_MEMORY, "no model in it"
    elif not context.model_bytes:
        size, reason = 2 * LEAST_MEMORY, "the model's size is unknown"
    else:
        size, reason = max(LEAST_MEMORY, 2 * context.model_bytes // context.pods), _twice(context)
    if context.gpus:
        size, reason = size + SHM_BYTES, f"{reason}, and {SHM_PATH}, which counts as memory"
    memory = quantities.mebibytes(size)
    log.decide(context.component.role, "memory", memory, reason)
    return memory


def _check_memory(context: PlanContext, limits: Mapping[str, Json], log: DecisionLog) -> None:
    """Warn if the weights do not fit into memory; with a GPU they only pass through it in parts."""
    limit = quantities.quantity_or_zero(limits["memory"]) if "memory" in limits else None
    if limit is not None and context.model_bytes and not context.gpus and limit < context.model_bytes:
        message = f"{limits['memory']} is less than the model's {quantities.mebibytes(context.model_bytes)}; raise it"
        log.warn("PL344", context.path("runner.resources.limits.memory"), message)


def shared_memory(container: Mapping[str, Json], has_gpus: bool) -> tuple[list[Json], list[Json]]:
    """Return volume and mount of a memory-backed /dev/shm, unless the container has one; the default is 64 MB."""
    mounted = any(mount.get("mountPath") == SHM_PATH for mount in container.get("volumeMounts") or ())
    if mounted or not has_gpus:
        return [], []
    size = quantities.mebibytes(SHM_BYTES)
    volume = {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return [volume], [{"name": SHM_VOLUME, "mountPath": SHM_PATH}]


def _serving_container(context: PlanContext) -> Mapping[str, Json]:
    """Return the container that serves requests: the main one, or a sidecar if only that declares a port.

    With Knative any sidecar; in a Deployment only KServe's collocated transformer, since another's may serve metrics.
    """
    main, sidecars = context.choice.container, context.choice.pod.get("containers") or ()
    if context.choice.is_pilotlight or main.get("ports"):
        return main
    candidates = (each for each in sidecars if context.serverless or each.get("name") == COLLOCATED)
    return next((each for each in candidates if each.get("ports")), main)


def _main_container(
    context: PlanContext, storage: ModelStorage, level: Level, port: int, port_name: str, timeout_s: int,
    log: DecisionLog,
) -> dict[str, Json]:  # fmt: skip
    """Return the main container: its own fields over our defaults, except image, ports, probes and resources."""
    choice = context.choice
    own_fields = {key: value for key, value in choice.container.items() if key not in ("ports", *PROBES)}
    resources = decide_resources(context, log)
    shm = shared_memory(own_fields, bool(quantities.gpu_count(choice.container)))[1]
    # A folder: a mounted file would not follow changes of its Secret.
    access = {"name": names.ACCESS_VOLUME, "mountPath": names.ACCESS_DIR, "readOnly": True}
    base: dict[str, Json] = {
        "image": image(context, log),
        "env": [
            *environment_variables.identity(context),
            *environment_variables.settings(context, timeout_s),
            *environment_variables.access(context),
            *router.transfer_environment(context),
            *storage.env,
            # 64 MiB of /dev/shm where no volume is mounted.
            *[{"name": "TMPDIR", "value": SHM_PATH}] * _needs_no_volumes(context, storage),
        ],
        "volumeMounts": [*storage.mounts, *shm, *_scratch_mount(context, storage), *[access] * context.enforces_access],
    }
    if choice.gateway:
        base |= {"command": list(router.COMMAND)}
        base["env"] = [
            *environment_variables.identity(context),
            *router.router_environment(context, timeout_s, log),
            *environment_variables.access(context),
        ]
    container = {"name": own_fields.get("name", "main"), **strategic_merge(base, own_fields)}
    container |= _predictor_args(context, container)
    container |= {"resources": resources, "ports": _ports(context, port, port_name)}
    container |= decide_probes(context, port, log)
    security = own_fields.get("securityContext") or {}
    container["securityContext"] = container_context(level, choice.is_pilotlight, security)
    return {key: value for key, value in container.items() if value not in ([], {}, None)}


def image(context: PlanContext, log: DecisionLog) -> str:
    """Return the default image; a container that is not ours must have its own (PL307)."""
    if not context.choice.is_pilotlight and not context.choice.container.get("image"):
        name = "runner.image" if context.service.group == "ome" else "containers"
        log.error("PL307", context.path(name), "has no image, and no runtime provides one; set an image or a runtime")
    return context.capabilities.own_image()


def _predictor_args(context: PlanContext, container: Mapping[str, Json]) -> dict[str, Json]:
    """Return the arguments that tell KServe's transformers and explainers the predictor's host."""
    if context.component.role not in ("transformer", "explainer"):
        return {}
    service = context.service
    host = f"{context.predictor}.{service.namespace}"
    defaults = {"--model_name": service.name, "--predictor_host": host}
    args = list(container.get("args") or ())
    present = {argument.partition("=")[0] for argument in args}
    return {"args": [*args, *(part for key, value in defaults.items() if key not in present for part in (key, value))]}


def _ports(context: PlanContext, port: int, port_name: str) -> list[dict[str, Json]]:
    """Return the ports of the main container: one for Knative, else all of them; none if a sidecar serves."""
    if _serving_container(context) is not context.choice.container:
        return []
    if context.serverless:
        return [{"name": port_name, "containerPort": port}]
    if context.choice.is_pilotlight and not context.choice.gateway:
        ports = {"http": HTTP_PORT, "grpc": GRPC_PORT, "metrics": METRICS_PORT}
        return [{"name": name, "containerPort": number} for name, number in ports.items()]
    declared = list(context.choice.container.get("ports") or ())
    return declared or [{"name": "http", "containerPort": port}]


def _scratch_mount(context: PlanContext, storage: ModelStorage) -> list[dict[str, Json]]:
    """Mount a /tmp for libraries, since the file system of our image is read-only."""
    if not context.choice.is_pilotlight or _needs_no_volumes(context, storage):
        return []
    return [{"name": SCRATCH, "mountPath": "/tmp"}]  # noqa: S108


def _needs_no_volumes(context: PlanContext, storage: ModelStorage) -> bool:
    """Return whether the pod can do without volumes, which speeds up a Knative cold start by a third.

    The kubelet polls for volumes every 300 ms. A model in the image needs none, and onnxruntime writes no files.
    """
    model = context.component.model
    onnx = model is not None and model.format == "onnx"
    none = bool(storage.path) and not storage.volumes and not context.enforces_access
    return context.serverless and context.choice.is_pilotlight and onnx and none


def _spec(
    context: PlanContext, pod: Mapping[str, Json], container: Mapping[str, Json], storage: ModelStorage,
    level: Level, timeout_s: int, account: str,
) -> dict[str, Json]:  # fmt: skip
    """Return the pod spec: the user's fields over our volumes and defaults."""
    volumes = list(storage.volumes)
    if any(mount["name"] == SHM_VOLUME for mount in container.get("volumeMounts") or ()):
        volumes += shared_memory({}, True)[0]
    if context.choice.is_pilotlight:
        volumes.append({"name": SCRATCH, "emptyDir": {}})
        secret = {"secretName": names.access_secret(context.service.name)}
        volumes.append({"name": names.ACCESS_VOLUME, "secret": secret})
    containers = (container, *storage.init_containers)
    mounted = {mount["name"] for each in containers for mount in each.get("volumeMounts") or ()}
    # The user's own mount may leave our volume unused, and Knative rejects unused volumes.
    volumes = [volume for volume in volumes if volume["name"] in mounted]
    base: dict[str, Json] = {"serviceAccountName": account, "enableServiceLinks": False, "volumes": volumes}
    if context.choice.is_pilotlight:
        base["automountServiceAccountToken"] = False
    elif context.component.role == "router" and router.discovers_pods(container):
        base["automountServiceAccountToken"] = True
    if context.mode == "multi-node":
        # An engine that starts again after it has lost a node is soon deleted with its group. As process 1 it would
        # ignore SIGTERM while it imports, and hold its GPUs for the whole grace period.
        base["shareProcessNamespace"] = True
    if not context.serverless:
        base["terminationGracePeriodSeconds"] = environment_variables.grace_seconds(timeout_s)
    spec = strategic_merge(base, {key: value for key, value in pod.items() if key != "containers"})
    spec["securityContext"] = pod_context(context)
    spec["nodeSelector"] = {**storage.node_selector, **pod.get("nodeSelector", {})}
    spec["topologySpreadConstraints"] = pod.get("topologySpreadConstraints") or _spread(context)
    init = [{**item, "securityContext": container_context(level, True, {})} for item in storage.init_containers]
    spec["initContainers"] = [*init, *(pod.get("initContainers") or ())]
    spec["containers"] = [dict(container), *(pod.get("containers") or ())]
    return {key: value for key, value in spec.items() if value not in ([], {}, None, "")}


def _spread(context: PlanContext) -> list[dict[str, Json]]:
    """Spread replicas over nodes. Not with Knative, which needs a feature flag, nor for groups."""
    if context.mode not in ("raw", "stateful"):
        return []
    selector = {"matchLabels": names.selector(context.name)}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return [{**spread, "labelSelector": selector}]


def _worker(context: PlanContext, storage: ModelStorage, level: Level, timeout_s: int, account: str) -> dict[str, Json]:
    """Return the template of a worker: the leader's image and volumes, no serving port."""
    choice = context.choice
    own_fields = dict(choice.worker_container or choice.container)
    has_gpus = bool(quantities.gpu_count(own_fields))
    base: dict[str, Json] = {
        "image": choice.container.get("image", ""),
        "env": [*environment_variables.identity(context), *storage.env],
        "volumeMounts": [*storage.mounts, *shared_memory(own_fields, has_gpus)[1], *_scratch_mount(context, storage)],
    }
    container = {"name": own_fields.get("name", "worker"), **strategic_merge(base, own_fields)}
    security = own_fields.get("securityContext") or {}
    container["securityContext"] = container_context(level, choice.is_pilotlight, security)
    requests = (container.get("resources") or {}).get("requests") or {}
    gpus = {name: count for name, count in requests.items() if quantities.is_gpu(name)}
    if gpus:
        container["resources"] = strategic_merge({"limits": gpus}, container["resources"])
    if container.get("resources"):
        container["resources"] = with_memory(context, container["resources"])
    spec = _spec(context, choice.worker_pod or choice.pod, container, storage, level, timeout_s, account)
    return {"metadata": metadata(context), "spec": spec}
