"""Fields of a component that have no effect in some modes: plan() warns about them with PL360.

docs/modes.md shows every field in every mode, and a test compares. The errors of refused fields, and the warnings about
what Knative refuses (PL359), are raised by other modules of plan().
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.types import DecisionLog, Mode


class FieldRow(NamedTuple):
    """One field by its name in OME, and in KServe where that differs; why it has no effect, by mode."""

    field: str
    is_set: Callable[[PlanContext], bool]
    why: Mapping[Mode, str]
    kserve: str = ""


def _has(name: str) -> Callable[[PlanContext], bool]:
    return lambda context: getattr(context.component, name) not in (None, (), {}, "")


def _has_metric(*kinds: str) -> Callable[[PlanContext], bool]:
    return lambda context: any(metric.kind in kinds for metric in context.component.metrics)


def _keda_row(field: str, name: str) -> FieldRow:
    def is_set(context: PlanContext) -> bool:
        config = context.component.keda
        return config is not None and bool(getattr(config, name))

    return FieldRow(f"kedaConfig.{field}", is_set, {"serverless": _KNATIVE_SCALES})


def _is_confidential(context: PlanContext) -> bool:
    model = context.component.model
    return model is not None and bool(model.confidential.get("enabled"))


def _in_every_mode(why: str) -> Mapping[Mode, str]:
    return {"serverless": why, "raw": why, "multi-node": why, "stateful": why}


_KNATIVE_SCALES: Final = "Knative scales it, and Knative cannot see latency or queries; use raw for KEDA"
_ACTIVATOR: Final[Mapping[Mode, str]] = {"serverless": "Knative's activator covers for a pod that is evicted"}
_ONE_GROUP: Final = "only a multi-node component has a leader and workers"

TABLE: Final[tuple[FieldRow, ...]] = (
    FieldRow("scaleMetricType", _has("scale_metric_type"), {"serverless": "Knative's targets have no type"}),
    FieldRow("autoScaling.metrics", _has_metric("external", "pod"), {"serverless": _KNATIVE_SCALES}),
    FieldRow("autoScaling.behavior", _has("behavior"), {
        "serverless": "Knative has no such policies; use its scale-down-delay and window annotations"}),
    FieldRow("deploymentStrategy", _has("deployment_strategy"), {
        "serverless": "Knative always starts the new revision beside the old one",
        "multi-node": "a LeaderWorkerSet has no such strategy; it surges where there are devices",
        "stateful": "a StatefulSet replaces its pods one by one",
    }),
    FieldRow("minAvailable", _has("min_available"), _ACTIVATOR),
    FieldRow("maxUnavailable", _has("max_unavailable"), _ACTIVATOR),
    _keda_row("enableKeda", "enabled"),
    _keda_row("promServerAddress", "server_address"),
    _keda_row("customPromQuery", "query"),
    _keda_row("scalingThreshold", "threshold"),
    _keda_row("scalingOperator", "operator"),
    _keda_row("authenticationRef", "authentication"),
    _keda_row("authModes", "auth_modes"),
    FieldRow("leader", _has("leader"), {"raw": _ONE_GROUP, "stateful": _ONE_GROUP}),
    FieldRow("worker", _has("worker"), {"raw": _ONE_GROUP, "stateful": _ONE_GROUP}, "workerSpec"),
    FieldRow("logger", _has("logger"), _in_every_mode(
        "requests are not copied to a logger; use access logs or traces")),
    FieldRow("storageContainerName", _has("storage_container"), _in_every_mode(
        "our own fetch is the only storage container")),
)  # fmt: skip


def check_fields(context: PlanContext, log: DecisionLog) -> None:
    """Warn about every field that is set and has no effect in the component's mode."""
    if context.mode == "virtual":
        return
    for row in TABLE:
        why = row.why.get(context.mode)
        if why and row.is_set(context):
            own = row.kserve if context.service.group == "kserve" and row.kserve else row.field
            log.warn("PL360", context.path(own), f"has no effect in {context.mode} mode: {why}")
    config = context.service.keda
    if context.serverless and context.serves_model and config is not None and config.enabled is not False:
        log.warn("PL360", "spec.kedaConfig", f"has no effect in serverless mode: {_KNATIVE_SCALES}")
    _check_annotations(context, log)
    _check_foreign(context, log)


def _check_annotations(context: PlanContext, log: DecisionLog) -> None:
    """Warn about annotations of another autoscaler."""
    for_deployments = (
        *document_annotations.AUTOSCALER_CLASS,
        document_annotations.TRIGGERS,
        document_annotations.FORMULA,
        document_annotations.WAKE_BY,
    )
    for key in {**context.service.annotations, **context.component.annotations}:
        if context.serverless and key in for_deployments:
            log.warn("PL360", context.annotation_path(key), f"has no effect in serverless mode: {_KNATIVE_SCALES}")
        elif not context.serverless and key.startswith(document_annotations.KNATIVE_SCALING):
            message = f"has no effect in {context.mode} mode: Knative does not scale it"
            log.warn("PL360", context.annotation_path(key), message)


def _check_foreign(context: PlanContext, log: DecisionLog) -> None:
    """Report features that only our predictor has, for other servers."""
    component = context.component
    if _is_confidential(context):
        log.error("PL364", context.path("model.confidential"), "nothing here decrypts a model; serve it as it is")
    if context.choice.is_pilotlight:
        return
    if component.batcher is not None:
        log.warn("PL361", context.path("batcher"), "the server is not ours and must batch by itself")
    if component.container_concurrency and not context.serverless:
        message = "the server is not ours, and nothing limits its requests in this mode; use the server's own setting"
        log.warn("PL361", context.path("containerConcurrency"), message)
