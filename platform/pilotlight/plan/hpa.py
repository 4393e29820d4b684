"""HorizontalPodAutoscalers: the default autoscaler of raw and multi-node components."""

from collections.abc import Iterator
from typing import Any, Final

from pilotlight.plan import annotations
from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.model import Scaling
from pilotlight.plan.subject import PlanContext

Json = Any
DEFAULT_UTILIZATION: Final = 80  # percent, the default of both projects


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
    name = component.scale_metric or context.annotation(*annotations.HPA_METRIC) or "cpu"
    target = component.scale_target or context.annotation(*annotations.HPA_TARGET) or DEFAULT_UTILIZATION
    kind = component.scale_metric_type or "Utilization"
    log.decide(component.role, "scaling target", f"{name} {target}", _why(context))
    # KServe reads a bare number as mebibytes for a memory target that is no utilization.
    amount = f"{target}Mi" if name == "memory" and kind != "Utilization" else str(target)
    yield _resource(name, kind, amount)


def _why(context: PlanContext) -> str:
    if context.component.scale_target is not None:
        return f"{context.component.role}.scaleTarget"
    return "annotation" if context.annotation(*annotations.HPA_TARGET) else "the default of both projects"


def _resource(name: str, kind: str, target: str) -> dict[str, Json]:
    """Return a resource metric. autoscaling/v2 has no Value for resources: a quantity is always per pod."""
    if kind == "Utilization":
        metric_target: dict[str, Json] = {"type": "Utilization", "averageUtilization": int(float(target))}
    else:
        metric_target = {"type": "AverageValue", "averageValue": target}
    return {"type": "Resource", "resource": {"name": name, "target": metric_target}}
