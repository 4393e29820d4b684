"""Autoscaling annotations of a serverless component: class, metric and target.

Concurrency and rps use the KPA class, cpu and memory the HPA class, which cannot scale to zero. The user's own
`autoscaling.knative.dev/…` annotations apply where no field sets the same, within Knative's bounds.
"""

from collections.abc import Callable
from typing import Final

from pilotlight.k8s.quantities import whole_seconds
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.document_annotations import KNATIVE_SCALING
from pilotlight.plan.types import DecisionLog, Scaling

KPA_CLASS: Final = "kpa.autoscaling.knative.dev"
HPA_CLASS: Final = "hpa.autoscaling.knative.dev"


def knative(context: PlanContext, min_replicas: int, max_replicas: int, log: DecisionLog) -> Scaling:
    """Return the scaling by Knative; `max_replicas` 0 means unlimited."""
    metric, target = _metric(context)
    user_annotations = _user_annotations(context, log)
    resource = metric in ("cpu", "memory") or user_annotations.get("class") == HPA_CLASS
    if resource and min_replicas == 0:
        path = context.path("scaleMetric" if context.component.scale_metric else "minReplicas")
        used = metric or "cpu"
        message = f"{used} cannot bring a service from 0, where none is used; set minReplicas to 1 or use concurrency"
        log.error("PL330", path, message)
    decided = {"class": HPA_CLASS if resource else KPA_CLASS, "min-scale": str(min_replicas)}
    if max_replicas:
        decided["max-scale"] = str(max_replicas)
    if metric:
        decided["metric"] = metric
    if target:
        decided["target"] = target
    merged = {**_retention(context, min_replicas, log), **user_annotations, **decided}
    annotations = {f"{KNATIVE_SCALING}{key}": merged[key] for key in sorted(merged)}
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
        key.removeprefix(KNATIVE_SCALING): value
        for annotations in (context.service.annotations, context.component.annotations)
        for key, value in annotations.items()
        if key.startswith(KNATIVE_SCALING)
    }
    for key, value in user_annotations.items():
        path = context.annotation_path(f"{KNATIVE_SCALING}{key}")
        if key in _INSTEAD:
            log.warn("PL331", path, f"has no effect beside the document's own field; write {_INSTEAD[key]}")
        elif key not in _BOUNDS:
            log.error("PL332", path, f"is no annotation of Knative; known are {', '.join(_BOUNDS)}")
        elif not _BOUNDS[key][0](value):
            log.error("PL333", path, f"{value}, must be {_BOUNDS[key][1]}")
    return {key: value for key, value in user_annotations.items() if key not in _INSTEAD}


def _number(low: float, high: float) -> Callable[[str], bool]:
    def within(text: str) -> bool:
        try:
            return low <= float(text) <= high
        except ValueError:
            return False

    return within


def _seconds(low: int, high: int) -> Callable[[str], bool]:
    def within(text: str) -> bool:
        seconds = whole_seconds(text)
        return seconds is not None and low <= seconds <= high

    return within


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda text: text in values


_INSTEAD: Final = {
    **dict.fromkeys(("min-scale", "minScale"), "minReplicas"),
    **dict.fromkeys(("max-scale", "maxScale"), "maxReplicas"),
}
_MANY: Final = float(2**31 - 1)
_BOUNDS: Final[dict[str, tuple[Callable[[str], bool], str]]] = {
    "class": (_one_of(KPA_CLASS, HPA_CLASS), f"{KPA_CLASS} or {HPA_CLASS}"),
    "metric": (_one_of("concurrency", "rps", "cpu", "memory"), "concurrency, rps, cpu or memory"),
    "target": (_number(0.01, _MANY), "a number of at least 0.01"),
    "target-utilization-percentage": (_number(1, 100), "a number from 1 to 100"),
    "initial-scale": (_number(0, _MANY), "a whole number from 0"),
    "activation-scale": (_number(2, _MANY), "a whole number from 2"),
    "scale-down-delay": (_seconds(0, 3600), "a duration of whole seconds up to 1h"),
    "scale-to-zero-pod-retention-period": (_seconds(0, 3600), "a duration of whole seconds up to 1h"),
    "window": (_seconds(6, 3600), "a duration of whole seconds from 6s to 1h"),
    "panic-window-percentage": (_number(1, 100), "a number from 1 to 100"),
    "panic-threshold-percentage": (_number(110, 1000), "a number from 110 to 1000"),
    "target-burst-capacity": (_number(-1, _MANY), "-1, 0 or a positive number"),
    "metric-aggregation-algorithm": (_one_of("linear", "weighted-exponential"), "linear or weighted-exponential"),
}
