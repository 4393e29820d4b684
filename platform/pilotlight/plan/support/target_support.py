"""Features of a document that some targets refuse, or run with an option only: errors PL371 to PL376 of plan().

target_support.yaml has them. What only the machine, daemon or cluster knows is checked by the target itself when it
applies the manifests.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, yaml

from pilotlight.catalogue.engine_programs import container_engine
from pilotlight.contract import is_predictor_image
from pilotlight.k8s.autoscaling_annotations import KNATIVE_AUTOSCALING
from pilotlight.k8s.model_pins import is_local
from pilotlight.k8s.names import ACCESS_DIR, ANNOTATION_CANARY, ANNOTATION_EXPOSE, ANNOTATION_ISOLATION, ANNOTATION_PARK
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.model_storage import location
from pilotlight.plan.types import DecisionLog, Workload
from pilotlight.spec.inference_graph.document import steps_of

Json = Any
TARGETS: Final = ("local", "kubernetes", "docker", "slurm", "lepton", "brev")
AVAILABLE: Final = TARGETS[:4]  # those that an error recommends
_PARTIAL_DEVICES: Final = ("nvidia.com/mig-", "amd.com/", "gpu.intel.com/", "habana.ai/", "google.com/tpu")
_METRIC: Final = f"{KNATIVE_AUTOSCALING}metric"
_FILES: Final = frozenset({"secret", "configMap", "projected", "downwardAPI"})


class FeatureRow(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of target_support.yaml."""

    feature: str
    field: str
    code: str
    refused: dict[str, str]
    instead: str
    needs: dict[str, tuple[str, str]] = {}


@cache
def table() -> tuple[FeatureRow, ...]:
    return yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=tuple[FeatureRow, ...])


def supports(target: str, field: str) -> bool:
    """Return whether a target takes the feature of a row without an option."""
    return not any(row.field == field and target in {*row.refused, *row.needs} for row in table())


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
    if not _is_foreign(workload) or (context.capabilities.target == "local" and container_engine(_main(workload))):
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


def _fetched_model(context: PlanContext, workload: Workload) -> str:
    fetches = workload.template["spec"].get("initContainers") or ()
    return location(context)[1] if _is_foreign(workload) and fetches else ""


def _devices(context: PlanContext, workload: Workload) -> str:
    resources = _main(workload).get("resources") or {}
    requested = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    if not any(name.startswith(_PARTIAL_DEVICES) for name in requested):
        return ""
    return _container_path(context, "resources")


def _annotation(name: str) -> Callable[[PlanContext, Workload], str]:
    """Return the field of a row about an annotation."""
    return lambda context, _: f"metadata.annotations.{name}" if name in context.service.annotations else ""


def _parking(*, foreign: bool) -> Callable[[PlanContext, Workload], str]:
    def field(context: PlanContext, workload: Workload) -> str:
        parks = context.service.annotations.get(ANNOTATION_PARK) == "true" and _is_foreign(workload) == foreign
        return f"metadata.annotations.{ANNOTATION_PARK}" if parks else ""

    return field


def _when(path: str, asks: Callable[[Workload], bool]) -> Callable[[PlanContext, Workload], str]:
    """Return the field of a row about the workloads that ask for something."""
    return lambda context, workload: context.path(path) if asks(workload) else ""


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


def _split(context: PlanContext, _: Workload) -> str:
    if context.service.canaries:
        return "spec.canary"
    if ANNOTATION_CANARY in context.service.annotations:
        return f"metadata.annotations.{ANNOTATION_CANARY}"
    return context.path("canaryTrafficPercent") if context.component.canary_traffic_percent is not None else ""


def _several_components(context: PlanContext, _: Workload) -> str:
    first, *others = context.service.components
    return f"spec.{others[0] if first in ('engine', 'predictor') else first}" if others else ""


def _graph_services(context: PlanContext, _: Workload) -> str:
    steps = steps_of(context.component.graph.get("nodes", {}))
    return next((f"{path}.serviceName" for path, step in steps if "serviceName" in step), "")


def _access_rules(*, foreign: bool) -> Callable[[PlanContext, Workload], str]:
    def field(context: PlanContext, workload: Workload) -> str:
        rules = document_annotations.for_workload_objects(context.service.annotations)
        return f"metadata.annotations.{next(iter(rules))}" if rules and _is_foreign(workload) == foreign else ""

    return field


# Each returns the path of the field that asks for a feature; empty: the workload does without.
FIELDS: Final[Mapping[str, Callable[[PlanContext, Workload], str]]] = {
    "foreign": _foreign, "several_containers": _several_containers, "several_nodes": _several_nodes,
    "local_model": lambda context, workload: location(context)[1] if any(map(is_local, workload.model_uris)) else "",
    "fetched_model": _fetched_model, "host_path": _volume(host=True, files=False),
    "other_volume": _volume(host=False, files=False), "file_volume": _volume(host=False, files=True),
    "devices": _devices, "parking": _parking(foreign=False), "foreign_parking": _parking(foreign=True),
    "isolation": _annotation(ANNOTATION_ISOLATION),
    "scale_to_zero": _when("minReplicas", lambda workload: workload.scaling.min_replicas == 0),
    "several_replicas": _when("minReplicas", lambda workload: workload.scaling.min_replicas > 1),
    "by_concurrency": _by_requests(rate=False),
    "by_rate": _by_requests(rate=True), "by_query": _by_query,
    "by_usage": lambda context, work: _scaling_field(context) if work.scaling.scaler in ("hpa", "knative-hpa") else "",
    "split": _split,
    "several_components": _several_components, "graph_services": _graph_services,
    "access_rules": _access_rules(foreign=False), "foreign_access_rules": _access_rules(foreign=True),
    "exposed": _annotation(ANNOTATION_EXPOSE),
    "grpc": _when("model.protocolVersion", lambda workload: workload.port_name == "h2c"),
}  # fmt: skip


def check_target(context: PlanContext, workload: Workload, log: DecisionLog) -> None:
    """Report every feature of the workload that its target does not support; nothing if the target is not known."""
    target, options = context.capabilities.target, context.capabilities.target_options
    if target not in TARGETS:
        return
    for row in table():
        how, option = row.needs.get(target, ("", ""))
        name, _, value = option.partition("=")
        written = options.get(name, "none")
        missing = bool(name) and (written != value if value else written == "none")
        why = row.refused.get(target)
        if not (why or missing) or not (path := FIELDS[row.field](context, workload)):
            continue
        if missing:
            message = f"{target} supports it {how}; add --target-option {name}={value or 'VALUE'}"
            log.error("PL376", path, message)
        else:
            *others, last = (each for each in AVAILABLE if each not in row.refused)
            elsewhere = f"{', '.join(others)} or {last}" if others else last
            unset = f" (--set {path}=null selects one)" if path.endswith("model.runtime") else ""
            instead = f"{row.instead}{unset}, or --target {elsewhere}"
            log.error(row.code, path, f"{target} does not support it: {why}; {instead}")
