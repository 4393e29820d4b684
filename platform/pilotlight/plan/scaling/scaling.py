"""The one autoscaler that owns a workload's replica count: which one, its limits, and the HPA's metrics."""

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.scaling import keda
from pilotlight.plan.scaling.knative_annotations import knative
from pilotlight.plan.scaling.triggers import choose_triggers, config_of
from pilotlight.plan.types import Capabilities, DecisionLog, Requirement, Scaling, Trigger

Json = Any
Owner = Literal["hpa", "keda", "external", "none"]
OWNERS: Final = ("hpa", "keda", "external", "none")
OME_MAXIMUM: Final = 3
OME_ROUTER_MAXIMUM: Final = 2
_TARGETS: Final = ("threshold", "targetConcurrency", "value", "targetValue", "desiredReplicas")
DEFAULT_UTILIZATION: Final = 80  # percent, default of KServe and OME


def decide_scaling(context: PlanContext, least: int, log: DecisionLog) -> Scaling:
    """Return the scaling of a component. `least`: minimum that a canary demands of both variants."""
    minimum, maximum = limits(context, least, log)
    if context.mode == "virtual":
        return Scaling("none", 0, 0)
    if context.serverless:
        scaling = knative(context, minimum, maximum, log)
        owner = "Knative" if context.capabilities.is_cluster else "the platform"
        log.decide(context.component.role, "autoscaler", scaling.scaler, f"serverless is scaled by {owner}")
        return scaling
    if context.on_ray:
        return _on_ray(context, max(1, minimum), log)
    owner, reason = _owner(context, minimum, log)
    log.decide(context.component.role, "autoscaler", owner, reason)
    if owner == "keda":
        return _keda(context, minimum, maximum, log)
    if owner == "hpa":
        return hpa(context, minimum, maximum, log)
    return Scaling("none", minimum, maximum)


def _on_ray(context: PlanContext, groups: int, log: DecisionLog) -> Scaling:
    """Return a fixed scaling: each group is a RayCluster of its own, so there is no replica count to scale."""
    reason = "each group is a separate RayCluster, which no autoscaler counts"
    log.decide(context.component.role, "autoscaler", "none", reason)
    most = context.component.max_replicas
    if most is not None and most > groups:
        log.warn("PL360", context.path("maxReplicas"), f"has no effect on Ray: {reason}; {groups} run")
    keda_reason = _keda_reason(context, 1)
    if keda_reason:
        log.warn("PL360", context.path(), f"{keda_reason} has no effect on Ray: {reason}; use MultiNode to scale")
    return Scaling("none", groups, groups)


def replicas_of(context: PlanContext, scaling: Scaling) -> int | None:
    """Return a fixed replica count if there is no autoscaler; otherwise each apply would undo its last decision."""
    external = context.annotation(*document_annotations.AUTOSCALER_CLASS) == "external"
    return scaling.min_replicas if scaling.scaler == "none" and not external else None


def limits(context: PlanContext, least: int, log: DecisionLog) -> tuple[int, int]:
    """Return minimum and maximum. Defaults: min 1; max 3 in OME, 2 for its router; unlimited in KServe."""
    component = context.component
    declared = 1 if component.min_replicas is None else component.min_replicas
    minimum = max(least, declared)
    if least > declared:
        log.decide(component.role, "min replicas", least, "both sides of a canary stay up")
    if "decoder" in context.service.components and context.serves_model and minimum == 0:
        message = f"a request cannot wake the {component.role} behind a router; the minimum is 1"
        log.warn("PL311", context.path("minReplicas"), message)
        minimum = 1
    default = OME_ROUTER_MAXIMUM if component.role == "router" else OME_MAXIMUM
    maximum = component.max_replicas or (0 if context.service.group == "kserve" else default)
    if component.max_replicas and component.min_replicas and component.max_replicas < component.min_replicas:
        message = f"maxReplicas = {component.max_replicas} is below minReplicas = {component.min_replicas}; raise it"
        log.error("PL310", context.path("maxReplicas"), message)
    if context.serverless and not maximum:
        return minimum, 0  # Knative's value for unlimited
    return minimum, max(minimum, maximum, 1)


def _owner(context: PlanContext, minimum: int, log: DecisionLog) -> tuple[Owner, str]:
    """Return the autoscaler and its reason: by annotation, KEDA if only it supports the settings, else an HPA."""
    key, value = document_annotations.lookup(context.service, context.component, *document_annotations.AUTOSCALER_CLASS)
    if value and value not in OWNERS:
        log.error("PL312", context.annotation_path(key), f"{value}, must be one of {', '.join(OWNERS)}")
    keda_reason = _keda_reason(context, minimum)
    for owner in ("keda", "external", "none"):
        if value == owner:
            return owner, f"annotation {key} = {value}"
    if value == "hpa":
        if minimum == 0:
            message = f"{key} = hpa keeps at least one replica; set minReplicas to 1 or use keda"
            log.error("PL313", context.path("minReplicas"), message)
        elif keda_reason:
            log.error("PL313", context.annotation_path(key), f"hpa does not support this: {keda_reason}; use keda")
        return "hpa", f"annotation {key} = hpa"
    if keda_reason:
        return "keda", keda_reason
    if context.mode == "stateful":
        return "none", "replicas of a stateful component are not interchangeable"
    return "hpa", "no setting needs KEDA"


def _keda_reason(context: PlanContext, minimum: int) -> str:
    """Return the setting that only KEDA supports, or ""."""
    component, config = context.component, config_of(context)
    if config is not None and config.enabled is not False and (config.enabled or config.query or config.threshold):
        return "kedaConfig.enableKeda" if config.enabled else "kedaConfig is set"
    for key in (document_annotations.TRIGGERS, document_annotations.SCHEDULE):
        if context.annotation(key):
            return f"annotation {key}"
    if any(metric.kind != "resource" for metric in component.metrics):
        return "autoScaling.metrics names more than cpu and memory"
    if component.scale_metric in ("concurrency", "rps"):
        return f"scaleMetric = {component.scale_metric}, which an HPA cannot see"
    return f"{component.role}.minReplicas = 0, which an HPA cannot reach" if minimum == 0 else ""


def hpa(context: PlanContext, min_replicas: int, max_replicas: int, log: DecisionLog) -> Scaling:
    """Return the scaling by an HPA: cpu at 80 % by default; `behavior` is passed through."""
    metrics = tuple(_metrics(context, log))
    return Scaling("hpa", min_replicas, max_replicas, metrics=metrics, behavior=dict(context.component.behavior))


def _metrics(context: PlanContext, log: DecisionLog) -> Iterator[dict[str, Json]]:
    component = context.component
    for metric in component.metrics:
        if metric.kind == "resource":
            yield _resource(metric.name, metric.target_type, metric.target)
    if component.metrics:
        return
    name = component.scale_metric or context.annotation(*document_annotations.HPA_METRIC) or "cpu"
    target = component.scale_target or context.annotation(*document_annotations.HPA_TARGET) or DEFAULT_UTILIZATION
    kind = component.scale_metric_type or "Utilization"
    why = "annotation" if context.annotation(*document_annotations.HPA_TARGET) else "default of KServe and OME"
    why = why if component.scale_target is None else f"{component.role}.scaleTarget"
    log.decide(component.role, "scaling target", f"{name} {target}", why)
    # KServe reads a bare number as mebibytes for a memory target that is no utilization.
    amount = f"{target}Mi" if name == "memory" and kind != "Utilization" else str(target)
    yield _resource(name, kind, amount)


def _resource(name: str, kind: str, target: str) -> dict[str, Json]:
    """Return a resource metric. autoscaling/v2 has no Value for resources: a quantity is always per pod."""
    if kind == "Utilization":
        metric_target: dict[str, Json] = {"type": "Utilization", "averageUtilization": int(float(target))}
    else:
        metric_target = {"type": "AverageValue", "averageValue": target}
    return {"type": "Resource", "resource": {"name": name, "target": metric_target}}


def _keda(context: PlanContext, minimum: int, maximum: int, log: DecisionLog) -> Scaling:
    _check_keda(context, context.capabilities, log)
    triggers = choose_triggers(context, minimum, log)
    for trigger in triggers:
        target = next((trigger.metadata[key] for key in _TARGETS if key in trigger.metadata), "")
        described = f"{trigger.type} {target}".strip()
        log.decide(context.component.role, f"trigger {trigger.name}", described, _shape(trigger))
    modifiers = _modifiers(context, triggers, minimum, log)
    return keda.scaled_object(context, minimum, maximum, triggers, context.component.behavior, modifiers)


def _shape(trigger: Trigger) -> str:
    if trigger.type == "external-push":
        return "the gateway reports waiting requests, also at zero replicas"
    if trigger.type == "cron":
        return "replicas by a schedule, before requests come"
    if trigger.type in ("cpu", "memory"):
        return "by the HPA's own metric"
    level = trigger.metric_type == "Value"
    return "a level: replicas × value / target" if level else "a total, divided by the replicas"


def _check_keda(context: PlanContext, capabilities: Capabilities, log: DecisionLog) -> None:
    path = context.path()
    if not capabilities.keda:
        log.error("PL314", path, "needs KEDA, which the target does not have; install it or use hpa")
    elif not keda.is_supported(capabilities.keda):
        message = f"KEDA {capabilities.keda} has no fallback for Value metrics; upgrade it to 2.18 or later"
        log.error("PL314", path, message)
    log.require(Requirement("version", "KEDA >= 2.18", f"{context.component.role}: fallback on Value metrics"))


def _modifiers(context: PlanContext, triggers: list[Trigger], minimum: int, log: DecisionLog) -> dict[str, str]:
    """Return scalingModifiers: one composite metric. With a fallback KEDA requires an integer target."""
    formula = context.annotation(document_annotations.FORMULA)
    if not formula:
        return {}
    path = context.annotation_path(document_annotations.FORMULA)
    target = context.annotation(document_annotations.FORMULA_TARGET) or "1"
    known = {trigger.name for trigger in triggers}
    used = set(re.findall(r"[A-Za-z_]\w*", formula)) & known
    if not used:
        log.error("PL334", path, f"uses none of the triggers {', '.join(sorted(known))}")
    if minimum == 0 and keda.REQUESTS_TRIGGER not in used:
        message = f"does not use {keda.REQUESTS_TRIGGER}, so a request cannot wake the service from 0"
        log.error("PL335", path, f"{message}; use it or set minReplicas to 1")
    if not target.isdigit() or int(target) < 1:
        path = context.annotation_path(document_annotations.FORMULA_TARGET)
        log.error("PL336", path, f"{target}, must be a whole number from 1: KEDA drops the fallback otherwise")
    level = any(trigger.metric_type == "Value" for trigger in triggers)
    return {"formula": formula, "target": target, "metricType": "Value" if level else "AverageValue"}
