"""Autoscaling annotations of a serverless component: class, metric and target.

Concurrency and rps use the KPA class, cpu and memory the HPA class, which cannot scale to zero. The user's own
`autoscaling.knative.dev/…` annotations apply where no field sets the same, within Knative's bounds.
"""

from typing import Final

from pilotlight.k8s.autoscaling_annotations import HPA_CLASS, KEYS, KNATIVE_AUTOSCALING, KPA_CLASS, required_value
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.types import DecisionLog, Scaling

_FIELDS: Final = {
    **dict.fromkeys(("min-scale", "minScale"), "minReplicas"),
    **dict.fromkeys(("max-scale", "maxScale"), "maxReplicas"),
}


def knative(context: PlanContext, min_replicas: int, max_replicas: int, log: DecisionLog) -> Scaling:
    """Return the scaling by Knative; `max_replicas` 0 means unlimited."""
    metric, target = _metric(context)
    user_annotations = _user_annotations(context, log)
    resource = metric in ("cpu", "memory") or user_annotations.get("class") == HPA_CLASS
    if resource and min_replicas == 0:
        path = context.path("scaleMetric" if context.component.scale_metric else "minReplicas")
        used = metric or "cpu"
        message = f"{used} cannot scale a service up from 0; set minReplicas to 1 or use concurrency"
        log.error("PL330", path, message)
    decided = {"class": HPA_CLASS if resource else KPA_CLASS, "min-scale": str(min_replicas)}
    if max_replicas:
        decided["max-scale"] = str(max_replicas)
    if metric:
        decided["metric"] = metric
    if target:
        decided["target"] = target
    merged = {**_retention(context, min_replicas, log), **user_annotations, **decided}
    annotations = {f"{KNATIVE_AUTOSCALING}{key}": merged[key] for key in sorted(merged)}
    return Scaling("knative-hpa" if resource else "kpa", min_replicas, max_replicas, annotations)


def _metric(context: PlanContext) -> tuple[str, str]:
    """Return metric and target; a target without a metric is a concurrency."""
    component = context.component
    for metric in component.metrics:
        if metric.kind == "resource":
            return metric.name, metric.target
    target = "" if component.scale_target is None else str(component.scale_target)
    return component.scale_metric or ("concurrency" if target else ""), target


def _retention(context: PlanContext, min_replicas: int, log: DecisionLog) -> dict[str, str]:
    """Return the annotation that retains the last pod for as long as the model takes to load."""
    # Ski rental: keeping a pod for as long as its restart takes costs at most twice the optimum. Knative allows 1 h.
    seconds = min(3600, context.load_seconds)
    if min_replicas or seconds < 30:
        return {}
    reason = "the model takes that long to load"
    log.decide(context.component.role, "kept after the last request", f"{seconds} s", reason)
    return {"scale-to-zero-pod-retention-period": f"{seconds}s"}


def _user_annotations(context: PlanContext, log: DecisionLog) -> dict[str, str]:
    """Return the user's annotations after validation, without min-scale and max-scale, which fields set."""
    user_annotations = {
        key.removeprefix(KNATIVE_AUTOSCALING): value
        for annotations in (context.service.annotations, context.component.annotations)
        for key, value in annotations.items()
        if key.startswith(KNATIVE_AUTOSCALING)
    }
    for key, value in user_annotations.items():
        path = context.annotation_path(f"{KNATIVE_AUTOSCALING}{key}")
        if key in _FIELDS:
            log.warn("PL331", path, f"has no effect next to the manifest's own field; set {_FIELDS[key]}")
        elif key not in KEYS:
            known = ", ".join(sorted(KEYS - _FIELDS.keys()))
            log.error("PL332", path, f"is not a Knative annotation; known: {known}")
        elif required := required_value(key, value):
            log.error("PL333", path, f"{value}, must be {required}")
    return {key: value for key, value in user_annotations.items() if key not in _FIELDS}
