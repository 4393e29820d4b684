"""A HorizontalPodAutoscaler's metrics: what raw and multi-node components get when nothing asks for KEDA."""

from collections.abc import Iterator
from typing import Any, Final

from pilotlight.plan import annotations
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.model import Scaling
from pilotlight.plan.subject import Subject

Json = Any
DEFAULT_UTILIZATION: Final = 80  # percent, as both projects default it


def hpa(subject: Subject, min_replicas: int, max_replicas: int, ledger: Ledger) -> Scaling:
    """cpu at 80 % unless the document says otherwise; `behavior` is passed on whole."""
    metrics = tuple(_metrics(subject, ledger))
    return Scaling("hpa", min_replicas, max_replicas, metrics=metrics, behavior=dict(subject.component.behavior))


def _metrics(subject: Subject, ledger: Ledger) -> Iterator[dict[str, Json]]:
    component = subject.component
    for metric in component.metrics:
        if metric.kind == "resource":
            yield _resource(metric.name, metric.target_type, metric.target)
    if component.metrics:
        return
    name = component.scale_metric or subject.annotation(*annotations.HPA_METRIC) or "cpu"
    target = component.scale_target or subject.annotation(*annotations.HPA_TARGET) or DEFAULT_UTILIZATION
    kind = component.scale_metric_type or "Utilization"
    ledger.decide(component.role, "scaling target", f"{name} {target}", _why(subject))
    # KServe reads a bare number as mebibytes when memory is compared as an amount.
    amount = f"{target}Mi" if name == "memory" and kind != "Utilization" else str(target)
    yield _resource(name, kind, amount)


def _why(subject: Subject) -> str:
    if subject.component.scale_target is not None:
        return f"{subject.component.role}.scaleTarget"
    return "annotation" if subject.annotation(*annotations.HPA_TARGET) else "the default of both projects"


def _resource(name: str, kind: str, target: str) -> dict[str, Json]:
    """autoscaling/v2 knows no Value for resources: an amount is always one per pod."""
    if kind == "Utilization":
        aim: dict[str, Json] = {"type": "Utilization", "averageUtilization": int(float(target))}
    else:
        aim = {"type": "AverageValue", "averageValue": target}
    return {"type": "Resource", "resource": {"name": name, "target": aim}}
