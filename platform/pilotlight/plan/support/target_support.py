"""Features of a document that some targets refuse, or run with an option only: errors PL371 to PL376 of plan().

docs/targets.md shows every feature on every target, and a test compares. What only the machine, daemon or cluster knows
is checked by the target itself when it applies the manifests.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pilotlight.contract import is_predictor_image
from pilotlight.k8s.model_pins import is_local
from pilotlight.k8s.names import ACCESS_DIR, ANNOTATION_CANARY, ANNOTATION_EXPOSE, ANNOTATION_ISOLATION, ANNOTATION_PARK
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.model_storage import location
from pilotlight.plan.types import DecisionLog, Workload
from pilotlight.targets.target import NO_GATEWAY

Json = Any
TARGETS: Final = ("local", "kubernetes", "docker", "slurm", "lepton", "brev")
AVAILABLE: Final = TARGETS[:4]  # those that an error recommends
_PARTIAL_DEVICES: Final = ("nvidia.com/mig-", "amd.com/", "gpu.intel.com/", "habana.ai/", "google.com/tpu")
_METRIC: Final = "autoscaling.knative.dev/metric"
_FILES: Final = frozenset({"secret", "configMap", "projected", "downwardAPI"})


class FeatureRow(NamedTuple):
    """One feature, and the targets that do not just run it.

    `field` returns the path of the field that asks for it; empty: the workload does without.
    """

    feature: str
    field: Callable[[PlanContext, Workload], str]
    refused: Mapping[str, str]  # why, by target
    code: str
    instead: str  # remedy in the document
    needs: Mapping[str, tuple[str, str]] = {}  # by target: how it runs, and the option for it, NAME or NAME=VALUE


def _refused_by(*targets: str, why: str) -> dict[str, str]:
    return dict.fromkeys(targets, why)


def _only_kubernetes(why: str) -> dict[str, str]:
    return {target: why for target in TARGETS if target != "kubernetes"}


def _main(workload: Workload) -> dict[str, Json]:
    return dict(workload.template["spec"]["containers"][0])


def _is_foreign(workload: Workload) -> bool:
    return not is_predictor_image(str(_main(workload).get("image") or ""))


def _container_path(context: PlanContext, field: str = "") -> str:
    """Return the path of the main container, or of a field of it, in the form that the document has."""
    component = context.component
    if context.service.group == "ome":
        own = "runner" if component.runner or not context.service.runtime else ""
    else:
        own = "containers" if component.pod.get("containers") else "model"
    if not own:
        return "spec.runtime"
    return context.path(f"{own}.{field}" if field and own != "containers" else own)


def _foreign(context: PlanContext, workload: Workload) -> str:
    if not _is_foreign(workload):
        return ""
    written = context.component.model is not None and context.component.model.runtime
    return context.path("model.runtime") if written else _container_path(context, "image")


def _several_containers(context: PlanContext, workload: Workload) -> str:
    if len(workload.template["spec"]["containers"]) > 1:
        return context.path("containers")
    fetches = all(
        is_predictor_image(str(each.get("image"))) and "fetch" in (each.get("command") or ())
        for each in workload.template["spec"].get("initContainers") or ()
    )
    return "" if fetches else context.path("initContainers")


def _several_nodes(context: PlanContext, _: Workload) -> str:
    if context.mode != "multi-node":
        return ""
    return context.path("workerSpec" if context.service.group == "kserve" else "worker")


def _volume_kinds(workload: Workload) -> Iterator[str]:
    """Yield the kinds of the volumes that the main container mounts, without those of access rules."""
    volumes = {volume["name"]: volume for volume in workload.template["spec"].get("volumes") or ()}
    for mount in _main(workload).get("volumeMounts") or ():
        if mount["mountPath"] != ACCESS_DIR:
            yield next((kind for kind in volumes.get(mount["name"], {}) if kind != "name"), "")


def _volume(*, host: bool, files: bool) -> Callable[[PlanContext, Workload], str]:
    """Return the field of a row about host paths, about files of Secrets and the like, or about all other volumes."""

    def field(context: PlanContext, workload: Workload) -> str:
        for kind in _volume_kinds(workload):
            if kind not in ("", "emptyDir") and (kind == "hostPath") == host and (kind in _FILES) == files:
                uri, path = location(context)
                return path if uri.startswith(("pvc://", "oci://", "oci+native://")) else context.path("volumes")
        return ""

    return field


def _local_model(context: PlanContext, workload: Workload) -> str:
    return location(context)[1] if any(is_local(uri) for uri in workload.model_uris) else ""


def _fetched_model(context: PlanContext, workload: Workload) -> str:
    fetches = workload.template["spec"].get("initContainers") or ()
    return location(context)[1] if _is_foreign(workload) and fetches else ""


def _devices(context: PlanContext, workload: Workload) -> str:
    resources = _main(workload).get("resources") or {}
    requested = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    if not any(name.startswith(_PARTIAL_DEVICES) for name in requested):
        return ""
    return _container_path(context, "resources")


def _parking(context: PlanContext, _: Workload) -> str:
    parks = context.service.annotations.get(ANNOTATION_PARK) == "true"
    return f"metadata.annotations.{ANNOTATION_PARK}" if parks else ""


def _exposed(context: PlanContext, _: Workload) -> str:
    return f"metadata.annotations.{ANNOTATION_EXPOSE}" if ANNOTATION_EXPOSE in context.service.annotations else ""


def _isolation(context: PlanContext, _: Workload) -> str:
    written = ANNOTATION_ISOLATION in context.service.annotations
    return f"metadata.annotations.{ANNOTATION_ISOLATION}" if written else ""


def _scale_to_zero(context: PlanContext, workload: Workload) -> str:
    return context.path("minReplicas") if workload.scaling.min_replicas == 0 else ""


def _several_replicas(context: PlanContext, workload: Workload) -> str:
    return context.path("minReplicas") if workload.scaling.min_replicas > 1 else ""


def _scaling_field(context: PlanContext) -> str:
    """Return the field that asks for autoscaling; empty: nothing but the defaults of the project."""
    component = context.component
    fields = {
        "autoScaling.metrics": component.metrics,
        "scaleMetric": component.scale_metric,
        "kedaConfig": component.keda,
        "maxReplicas": (component.max_replicas or 0) > max(1, component.min_replicas or 0),
    }
    return next((context.path(name) for name, value in fields.items() if value), "")


def _by_query(context: PlanContext, _: Workload) -> str:
    if context.annotation(document_annotations.TRIGGERS):
        return context.annotation_path(document_annotations.TRIGGERS)
    config = context.component.keda or context.service.keda
    queries = any(metric.kind != "resource" for metric in context.component.metrics)
    return _scaling_field(context) or "spec.kedaConfig" if queries or (config is not None and config.query) else ""


def _by_requests(*, rate: bool) -> Callable[[PlanContext, Workload], str]:
    """Return the field of a row about requests a second, or about those in flight."""

    def field(context: PlanContext, workload: Workload) -> str:
        scaling = workload.scaling
        metrics = {scaling.annotations.get(_METRIC), *(trigger.name for trigger in scaling.triggers)}
        if scaling.scaler not in ("kpa", "keda") or ("rps" in metrics) != rate or _by_query(context, workload):
            return ""
        return _scaling_field(context)

    return field


def _by_usage(context: PlanContext, workload: Workload) -> str:
    return _scaling_field(context) if workload.scaling.scaler in ("hpa", "knative-hpa") else ""


def _split(context: PlanContext, _: Workload) -> str:
    if context.service.canaries:
        return "spec.canary"
    if ANNOTATION_CANARY in context.service.annotations:
        return f"metadata.annotations.{ANNOTATION_CANARY}"
    return context.path("canaryTrafficPercent") if context.component.canary_traffic_percent is not None else ""


def _several_components(context: PlanContext, _: Workload) -> str:
    first, *others = context.service.components
    return f"spec.{others[0] if first in ('engine', 'predictor') else first}" if others else ""


def _access_rules(*, foreign: bool) -> Callable[[PlanContext, Workload], str]:
    def field(context: PlanContext, workload: Workload) -> str:
        rules = document_annotations.for_workload_objects(context.service.annotations)
        return f"metadata.annotations.{next(iter(rules))}" if rules and _is_foreign(workload) == foreign else ""

    return field


def _grpc(context: PlanContext, workload: Workload) -> str:
    return context.path("model.protocolVersion") if workload.port_name == "h2c" else ""


_NO_GATEWAY: Final = _refused_by("lepton", "brev", why=NO_GATEWAY)
_NO_CONTAINERS: Final = "only our own predictor runs without containers"
_NO_FILES: Final = "it cannot read files of this machine"
_NO_FETCH: Final = "its container has no init containers, and the image fetches nothing itself"
_ONE_INSTANCE: Final = "one container on one instance serves it, and nothing scales that"
_BY_QUERIES: Final = "its autoscaler sees queries per minute and GPUs only"
_PARKED: Final = "a parked replica would keep the GPU that its container was given"
_NO_PROCESS: Final = "its replicas are no processes of this machine, which the annotation is about"

TABLE: Final = (
    FeatureRow("other images", _foreign, {"local": _NO_CONTAINERS}, "PL373", "use a runtime with our predictor",
        needs={"slurm": ("in a container of the job", "container")}),
    FeatureRow("several containers, init containers of your own", _several_containers,
        _only_kubernetes("a replica is one container here"), "PL373", "keep the main container alone"),
    FeatureRow("several nodes (`leader`, `worker`, `workerSpec`)", _several_nodes,
        _only_kubernetes("a replica runs on one machine here"), "PL373", "remove the workers"),
    FeatureRow("model in a folder of this machine", _local_model, _refused_by("lepton", "brev", why=_NO_FILES),
        "PL373", "put the model into a store such as s3://"),
    FeatureRow("model in a store, other images", _fetched_model,
        {"local": _NO_CONTAINERS, "lepton": _NO_FETCH, "brev": _NO_FETCH}, "PL373", "use our predictor"),
    FeatureRow("volumes: `hostPath`", _volume(host=True, files=False),
        {"lepton": "its machines have no folders of yours"}, "PL373", "use a URI such as s3://"),
    FeatureRow("volumes: claims, images, CSI, NFS; models at pvc:// and oci://", _volume(host=False, files=False),
        _only_kubernetes("it has no such volumes"), "PL373", "use a hostPath or a URI such as s3://"),
    FeatureRow("volumes: files of Secrets and ConfigMaps", _volume(host=False, files=True),
        _only_kubernetes("such files are not written here"), "PL373", "give the values as env"),
    FeatureRow("MIG slices, devices of other vendors", _devices,
        _only_kubernetes("only whole NVIDIA GPUs (nvidia.com/gpu) are assigned here"),
        "PL374", "ask for nvidia.com/gpu"),
    FeatureRow("parking (`pilotlight.dev/park`)", _parking,
        _refused_by("docker", "slurm", "lepton", "brev", why=_PARKED), "PL374", "remove the annotation"),
    FeatureRow("isolation of a process (`pilotlight.dev/isolation`)", _isolation,
        _refused_by("kubernetes", "docker", "slurm", "lepton", "brev", why=_NO_PROCESS),
        "PL373", "remove the annotation"),
    FeatureRow("scale to zero (`minReplicas: 0`)", _scale_to_zero, {
        "slurm": "a request cannot wait until the queue starts a job",
        "lepton": "an endpoint at zero is not woken by a request",
        "brev": _ONE_INSTANCE,
    }, "PL371", "use minReplicas: 1"),
    FeatureRow("several replicas (`minReplicas`)", _several_replicas, {"brev": _ONE_INSTANCE},
        "PL371", "use minReplicas: 1"),
    FeatureRow("autoscaling by requests in flight (`scaleMetric: concurrency`)", _by_requests(rate=False), {
        "lepton": "its autoscaler counts queries per minute, as scaleMetric: rps does",
        "brev": _ONE_INSTANCE,
    }, "PL371", "leave out maxReplicas"),
    FeatureRow("autoscaling by requests a second (`scaleMetric: rps`)", _by_requests(rate=True),
        {"brev": _ONE_INSTANCE}, "PL371", "leave out maxReplicas"),
    FeatureRow("autoscaling by latency or a query", _by_query, {"lepton": _BY_QUERIES, "brev": _ONE_INSTANCE},
        "PL371", "scale by requests"),
    FeatureRow("autoscaling by CPU or memory", _by_usage, {
        "slurm": "the usage of a job on another node is not measured", "lepton": _BY_QUERIES, "brev": _ONE_INSTANCE,
    }, "PL371", "use scaleMetric: concurrency"),
    FeatureRow("traffic splits, canaries, tags", _split, _NO_GATEWAY, "PL372", "release it at once"),
    FeatureRow("several components (transformer, router, decoder)", _several_components, {
        "slurm": "a job on another node does not reach the gateway of this machine", **_NO_GATEWAY,
    }, "PL375", "keep one component", needs={"docker": ("on the network of this machine", "network=host")}),
    FeatureRow("access rules and rate limits, our predictor", _access_rules(foreign=False), _NO_GATEWAY,
        "PL375", "remove the annotation",
        needs={"slurm": ("behind the gateway, with replicas on unix sockets", "address=tunnel")}),
    FeatureRow("access rules and rate limits, other images", _access_rules(foreign=True), {
        "local": _NO_CONTAINERS,
        "docker": "users of this machine reach its port past the gateway",
        "slurm": "users of its node reach its port past the gateway",
        **_NO_GATEWAY,
    }, "PL375", "use our predictor, or remove the annotation"),
    FeatureRow("load balancer of its own (`pilotlight.dev/expose`)", _exposed,
        _only_kubernetes("it has no load balancers"), "PL375", "remove the annotation"),
    FeatureRow("gRPC", _grpc, {
        "lepton": "its endpoints speak HTTP/1.1",
        "brev": "one port of the instance is opened, for HTTP",
    }, "PL375", "use protocolVersion: v2"),
)  # fmt: skip


def check_target(context: PlanContext, workload: Workload, log: DecisionLog) -> None:
    """Report every feature of the workload that its target does not support; nothing if the target is not known."""
    target, options = context.capabilities.target, context.capabilities.target_options
    if target not in TARGETS:
        return
    for row in TABLE:
        how, option = row.needs.get(target, ("", ""))
        name, _, value = option.partition("=")
        written = options.get(name, "none")
        missing = bool(name) and (written != value if value else written == "none")
        why = row.refused.get(target)
        if not (why or missing) or not (path := row.field(context, workload)):
            continue
        if missing:
            message = f"{target} runs it {how}; add --target-option {name}={value or 'VALUE'}"
            log.error("PL376", path, message)
        else:
            *others, last = (each for each in AVAILABLE if each not in row.refused)
            elsewhere = f"{', '.join(others)} or {last}" if others else last
            log.error(row.code, path, f"{target} cannot do it: {why}; {row.instead}, or --target {elsewhere}")
