"""The pod template of a workload, complete as it will be applied: what all other decisions come together in.

Order of precedence everywhere: the user's document, the runtime, our defaults. The revision's name is a hash of what
this module returns, so it must not contain anything that varies by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pilotlight import names, quantities
from pilotlight.contract import GRPC_PORT, HTTP_PORT, METRICS_PORT
from pilotlight.plan import annotations, environment, routing
from pilotlight.plan.knative_pods import fit_to_knative
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Capabilities
from pilotlight.plan.pod_rules import check_pod
from pilotlight.plan.probes import decide_probes
from pilotlight.plan.resources import SHM_VOLUME, decide_resources, shared_memory
from pilotlight.plan.security import Level, container_context, decide_level, pod_context
from pilotlight.plan.storage import Storage, decide_storage
from pilotlight.plan.subject import Subject
from pilotlight.spec.merge import strategic

Json = Any
SCRATCH: Final = "scratch"
COLLOCATED: Final = "transformer-container"
PUBLISHED: Final = Capabilities().image


@dataclass(frozen=True, slots=True)
class Template:
    """A pod template and what others must know about it."""

    template: dict[str, Json]
    port: int
    port_name: str
    metrics_port: int | None
    level: Level
    worker: dict[str, Json] | None = None


def decide_template(subject: Subject, timeout_s: int, account: str, ledger: Ledger) -> Template:
    storage = decide_storage(subject, ledger)
    level = decide_level(subject, list(storage.volumes), ledger)
    port, port_name = serving_port(subject)
    container = _main(subject, storage, level, port, port_name, timeout_s, ledger)
    spec = _spec(subject, subject.choice.pod, container, storage, level, timeout_s, account)
    if subject.serverless:
        spec = fit_to_knative(subject, spec, {"name": port_name, "containerPort": port}, ledger)
    worker = _worker(subject, storage, level, timeout_s, account) if subject.mode == "multi-node" else None
    check_pod(subject, spec, "", ledger)
    if worker is not None:
        check_pod(subject, worker["spec"], "worker", ledger)
    metrics = METRICS_PORT if subject.choice.ours and not subject.choice.gateway else None
    return Template({"metadata": metadata(subject), "spec": spec}, port, port_name, metrics, level, worker)


def metadata(subject: Subject) -> dict[str, Json]:
    """Labels and annotations of the pods; ours last, since others select by them."""
    service, component = subject.service, subject.component
    ours = names.pod_labels(service.group, service.name, component.role, subject.name)
    labels = {**service.labels, **component.labels, **ours}
    labels.pop(names.LABEL_VISIBILITY, None)
    written = {**service.annotations, **component.annotations}
    return {"labels": labels, "annotations": annotations.travelling(written)}


def serving_port(subject: Subject) -> tuple[int, str]:
    """Serverless has one port: h2c for a gRPC protocol, else HTTP. A container's own first port wins."""
    declared = _asked(subject).get("ports") or ()
    protocol = subject.component.model.protocol if subject.component.model is not None else ""
    grpc = protocol.startswith("grpc")
    if declared and not subject.choice.ours:
        name = str(declared[0].get("name", ""))
        return int(declared[0]["containerPort"]), "h2c" if grpc or name.startswith(("h2c", "grpc")) else "http1"
    return (GRPC_PORT, "h2c") if grpc and subject.choice.ours else (HTTP_PORT, "h2c" if grpc else "http1")


def _asked(subject: Subject) -> Mapping[str, Json]:
    """The container that requests come to: where the main one declares no port, the sidecar that does.

    To Knative that is any; in a Deployment only KServe's collocated transformer, as another's port may be its metrics'.
    """
    main, sidecars = subject.choice.container, subject.choice.pod.get("containers") or ()
    if subject.choice.ours or main.get("ports"):
        return main
    asked = (each for each in sidecars if subject.serverless or each.get("name") == COLLOCATED)
    return next((each for each in asked if each.get("ports")), main)


def _main(
    subject: Subject, storage: Storage, level: Level, port: int, port_name: str, timeout_s: int, ledger: Ledger
) -> dict[str, Json]:
    """The container that serves: its own fields over ours, but for what only we can know."""
    choice = subject.choice
    brought = {key: value for key, value in choice.container.items() if key not in ("ports", *_PROBE_FIELDS)}
    resources = decide_resources(subject, ledger)
    shm = shared_memory(brought, bool(quantities.gpus(choice.container)))[1]
    base: dict[str, Json] = {
        "image": image(subject, ledger),
        "env": [
            *environment.identity(subject),
            *environment.settings(subject, timeout_s),
            *storage.env,
            *_scratch_variable(subject, storage),
        ],
        "volumeMounts": [*storage.mounts, *shm, *_scratch_mount(subject, storage)],
    }
    if choice.gateway:
        base |= {"command": list(routing.COMMAND)}
        base["env"] = [*environment.identity(subject), *routing.router_environment(subject, ledger)]
    container = {"name": brought.get("name", "main"), **strategic(base, brought)}
    container["image"] = own_image(subject, str(container["image"]))
    container |= _peers(subject, container)
    container |= {"resources": resources, "ports": _ports(subject, port, port_name)}
    container |= decide_probes(subject, port, ledger)
    container["securityContext"] = container_context(level, choice.ours, brought.get("securityContext") or {})
    return {key: value for key, value in container.items() if value not in ([], {}, None)}


def image(subject: Subject, ledger: Ledger) -> str:
    """Our image for our runtime; anything else must bring its own."""
    if not subject.choice.ours and not subject.choice.container.get("image"):
        name = "runner.image" if subject.service.group == "ome" else "containers"
        ledger.error(
            "PL307", subject.path(name), "has no image, and no runtime gives it one; name an image or a runtime"
        )
    return subject.capabilities.image


def own_image(subject: Subject, chosen: str) -> str:
    """The built-in runtime names our image as it is published; a cluster may have it under another name."""
    return subject.capabilities.image if subject.choice.ours and chosen == PUBLISHED else chosen


_PROBE_FIELDS: Final = ("startupProbe", "readinessProbe", "livenessProbe")


def _peers(subject: Subject, container: Mapping[str, Json]) -> dict[str, Json]:
    """KServe tells a transformer and an explainer by arguments where the predictor is."""
    if subject.component.role not in ("transformer", "explainer"):
        return {}
    service = subject.service
    host = f"{subject.predictor}.{service.namespace}"
    wanted = {"--model_name": service.name, "--predictor_host": host}
    args = list(container.get("args") or ())
    given = {argument.partition("=")[0] for argument in args}
    return {"args": [*args, *(part for key, value in wanted.items() if key not in given for part in (key, value))]}


def _ports(subject: Subject, port: int, port_name: str) -> list[dict[str, Json]]:
    """Knative allows one; elsewhere our predictor shows all three. None where a sidecar is asked."""
    if _asked(subject) is not subject.choice.container:
        return []
    if subject.serverless:
        return [{"name": port_name, "containerPort": port}]
    if subject.choice.ours and not subject.choice.gateway:
        ports = {"http": HTTP_PORT, "grpc": GRPC_PORT, "metrics": METRICS_PORT}
        return [{"name": name, "containerPort": number} for name, number in ports.items()]
    declared = list(subject.choice.container.get("ports") or ())
    return declared or [{"name": "http", "containerPort": port}]


def _scratch_mount(subject: Subject, storage: Storage) -> list[dict[str, Json]]:
    """Our image's file system is read-only; libraries still want a /tmp."""
    if not subject.choice.ours or _wakes_without_volumes(subject, storage):
        return []
    return [{"name": SCRATCH, "mountPath": "/tmp"}]  # noqa: S108


def _scratch_variable(subject: Subject, storage: Storage) -> list[dict[str, Json]]:
    """Every container has this folder, of 64 MiB."""
    return [{"name": "TMPDIR", "value": "/dev/shm"}] * _wakes_without_volumes(subject, storage)  # noqa: S108


def _wakes_without_volumes(subject: Subject, storage: Storage) -> bool:
    """The kubelet looks every 300 ms whether a pod's volumes are there: a third of a cold start through Knative.

    A model that lies in the image needs none, and onnxruntime writes nothing; other runtimes may.
    """
    model = subject.component.model
    onnx = model is not None and model.format == "onnx"
    return subject.serverless and subject.choice.ours and onnx and bool(storage.path) and not storage.volumes


def _spec(
    subject: Subject, pod: Mapping[str, Json], container: Mapping[str, Json], storage: Storage, level: Level,
    timeout_s: int, account: str,
) -> dict[str, Json]:  # fmt: skip
    """Pod fields as the user wrote them, our volumes and defaults around them."""
    volumes = list(storage.volumes)
    if any(mount["name"] == SHM_VOLUME for mount in container.get("volumeMounts") or ()):
        volumes += shared_memory({}, True)[0]
    if subject.choice.ours:
        volumes.append({"name": SCRATCH, "emptyDir": {}})
    mounted = {
        mount["name"] for item in (container, *storage.init_containers) for mount in item.get("volumeMounts") or ()
    }
    # A folder that the user mounts otherwise leaves our volume unused, and Knative refuses unused volumes.
    volumes = [volume for volume in volumes if volume["name"] in mounted]
    base: dict[str, Json] = {"serviceAccountName": account, "enableServiceLinks": False, "volumes": volumes}
    if subject.choice.ours:
        base["automountServiceAccountToken"] = False
    if not subject.serverless:
        base["terminationGracePeriodSeconds"] = environment.grace_seconds(timeout_s)
    spec = strategic(base, {key: value for key, value in pod.items() if key != "containers"})
    spec["securityContext"] = pod_context(subject)
    spec["nodeSelector"] = {**storage.node_selector, **pod.get("nodeSelector", {})}
    spec["topologySpreadConstraints"] = pod.get("topologySpreadConstraints") or _spread(subject)
    init = [_secured(item, level, True) for item in storage.init_containers]
    spec["initContainers"] = [*init, *(pod.get("initContainers") or ())]
    spec["containers"] = [dict(container), *(pod.get("containers") or ())]
    return {key: value for key, value in spec.items() if value not in ([], {}, None, "")}


def _secured(container: Mapping[str, Json], level: Level, ours: bool) -> dict[str, Json]:
    return {**container, "securityContext": container_context(level, ours, container.get("securityContext") or {})}


def _spread(subject: Subject) -> list[dict[str, Json]]:
    """Replicas on different nodes where possible. Knative wants a feature flag for it, groups are placed as groups."""
    if subject.mode not in ("raw", "stateful"):
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.selector(subject.name)},
        }
    ]


def _worker(subject: Subject, storage: Storage, level: Level, timeout_s: int, account: str) -> dict[str, Json]:
    """A worker has the leader's image and volumes, and no port of its own that anybody asks."""
    choice = subject.choice
    brought = dict(choice.worker_container or choice.container)
    has_gpus = bool(quantities.gpus(brought))
    base: dict[str, Json] = {
        "image": subject.capabilities.image if choice.ours else choice.container.get("image", ""),
        "env": [*environment.identity(subject), *storage.env],
        "volumeMounts": [*storage.mounts, *shared_memory(brought, has_gpus)[1], *_scratch_mount(subject, storage)],
    }
    container = {"name": brought.get("name", "worker"), **strategic(base, brought)}
    container["image"] = own_image(subject, str(container["image"]))
    container["securityContext"] = container_context(level, choice.ours, brought.get("securityContext") or {})
    requests = (container.get("resources") or {}).get("requests") or {}
    gpus = {name: count for name, count in requests.items() if quantities.is_gpu(name)}
    if gpus:
        container["resources"] = strategic({"limits": gpus}, container["resources"])
    spec = _spec(subject, choice.worker_pod or choice.pod, container, storage, level, timeout_s, account)
    return {"metadata": metadata(subject), "spec": spec}
