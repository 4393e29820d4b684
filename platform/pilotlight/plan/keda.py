"""KEDA triggers by construction: the only place that makes one, so that the dangerous ones cannot be made.

Latency scales by Value (AverageValue ignores the current count), an empty or NaN answer is never "latency perfect",
a failing Prometheus holds the replicas, and nothing below a request wakes a service from zero. docs/keda.md says why.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from pilotlight import names
from pilotlight.plan import annotations, queries
from pilotlight.plan.model import Scaling, Trigger
from pilotlight.plan.queries import Measure
from pilotlight.plan.subject import Subject
from pilotlight.spec.model import ScalingMetric

Json = Any
LEAST_VERSION: Final = (2, 18)
# High enough that no latency reaches it: at zero replicas only requests decide, not the memory of slow ones.
NEVER_ACTIVE: Final = "1000000"
# KEDA keeps three digits behind the point, of thresholds as of values: 0.0004 is 0 to it, and no threshold may be 0.
# Below this, what it drops is more than a hundredth.
LEAST_THRESHOLD: Final = Decimal("0.1")
POLLING_S: Final = 15
LEAST_COOLDOWN_S: Final = 300
PUSH: Final = "requests"
GATEWAY: Final = "gateway"
HTTP_ADD_ON: Final = "http-add-on"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a Prometheus trigger shall watch. `own`: our predictor's metric, else somebody's query."""

    name: str
    query: str
    threshold: str
    measure: Measure
    address: str
    inverted: bool = False
    counted: bool = True  # our request rate can tell idle from slow
    authentication: Mapping[str, str] | None = None
    auth_modes: str = ""


def version_at_least(version: str, least: tuple[int, int] = LEAST_VERSION) -> bool:
    parts = [int(part) for part in version.lstrip("v").split(".")[:2] if part.isdigit()]
    return tuple(parts) >= least


def prometheus(subject: Subject, ask: Ask, min_replicas: int) -> Trigger:
    """A safe Prometheus trigger: guarded query, errors that are errors, and the type that fits what is measured."""
    from_zero = min_replicas == 0
    ask = _magnified(subject, ask)
    metadata = {
        "serverAddress": ask.address,
        "query": _query(subject, ask, from_zero),
        "threshold": "1" if ask.inverted else ask.threshold,
        "activationThreshold": NEVER_ACTIVE if from_zero else "0",
        "ignoreNullValues": "false",
    }
    if ask.auth_modes:
        metadata["authModes"] = ask.auth_modes
    level = ask.inverted or ask.measure == "level"
    return Trigger(
        "prometheus", ask.name, metadata, "Value" if level else "AverageValue", dict(ask.authentication or {})
    )


def _query(subject: Subject, ask: Ask, from_zero: bool) -> str:
    name, namespace = subject.service.name, subject.service.namespace
    if ask.inverted:
        return queries.inverted(ask.query, ask.threshold, name, namespace, from_zero=from_zero, counted=ask.counted)
    return queries.guarded(ask.query, ask.measure, name, namespace, from_zero=from_zero, counted=ask.counted)


def _magnified(subject: Subject, ask: Ask) -> Ask:
    """Query and threshold in thousandths, or millionths, where KEDA would round them away. A formula keeps the units
    it was written for; the other way round, what is watched is a ratio to 1."""
    wanted, factor = Decimal(ask.threshold), 1
    while wanted * factor < LEAST_THRESHOLD and not (ask.inverted or subject.annotation(annotations.FORMULA)):
        factor *= 1000
    if factor == 1:
        return ask
    return replace(ask, query=f"{factor} * (\n{ask.query}\n)", threshold=f"{(wanted * factor).normalize():f}")


def push(subject: Subject, target: int) -> Trigger | None:
    """The trigger that can wake from zero: whoever holds the requests says so. None: nobody does on this target, or
    not the one that the document names."""
    capabilities, there = subject.capabilities, wakers(subject)
    named = subject.annotation(annotations.WAKE_BY)
    chosen = next((each for each in there if named in ("", each)), "")
    if chosen == GATEWAY:
        metadata = {
            "scalerAddress": capabilities.gateway_scaler,
            "service": subject.service.name,
            "namespace": subject.service.namespace,
            "workload": subject.name,
            "targetConcurrency": str(target),
        }
        return Trigger("external-push", PUSH, metadata)
    if chosen == HTTP_ADD_ON:
        route = names.interceptor_route(subject.name)
        return Trigger("external-push", PUSH, {"scalerAddress": capabilities.http_scaler, "interceptorRoute": route})
    return None


def wakers(subject: Subject) -> list[str]:
    """Who can hold requests on this target, the one that is preferred first."""
    capabilities = subject.capabilities
    every = {GATEWAY: capabilities.our_gateway, HTTP_ADD_ON: capabilities.http_add_on}
    return [name for name, there in every.items() if there]


def resource(name: str, value: str, utilization: bool) -> Trigger:
    return Trigger(name, name, {"value": value}, "Utilization" if utilization else "AverageValue")


def graphite(name: str, metric: ScalingMetric) -> Trigger:
    """Graphite cannot guard a query; a level still scales by Value."""
    metadata = {
        "serverAddress": metric.server_address,
        "query": metric.query,
        "threshold": metric.target,
        "queryTime": "-2Minutes",
        "activationThreshold": NEVER_ACTIVE,
    }
    level = metric.target_type == "Value" or queries.is_level(metric.query)
    return Trigger("graphite", name, metadata, "Value" if level else "AverageValue", dict(metric.authentication))


def pod_metric(subject: Subject, name: str, metric: ScalingMetric, default_scaler: str) -> Trigger:
    """KServe's PodMetric: the OpenTelemetry add-on for KEDA answers over all pods of the workload."""
    filters = f'namespace="{subject.service.namespace}", deployment="{subject.name}"'
    metadata = {
        "scalerAddress": metric.server_address or default_scaler,
        "metricQuery": f"sum({metric.query or metric.name}{{{filters}}})",
        "targetValue": metric.target,
    }
    return Trigger("external", name, metadata, "AverageValue", dict(metric.authentication))


def scaled(
    subject: Subject, min_replicas: int, max_replicas: int, triggers: Sequence[Trigger],
    behavior: Mapping[str, Json], modifiers: Mapping[str, Json],
) -> Scaling:  # fmt: skip
    """The ScaledObject's numbers around its triggers, all from how long a replica takes to be of use."""
    # A start that nobody waits for any more must still end: shorter, and the next request begins it anew.
    cooldown = max(LEAST_COOLDOWN_S, subject.allowed_start_s)
    return Scaling(
        "keda", min_replicas, max_replicas,
        triggers=tuple(triggers),
        behavior=merged_behavior(subject, max_replicas, behavior),
        fallback=fallback(triggers, min_replicas),
        polling_interval=POLLING_S,
        cooldown_period=cooldown,
        initial_cooldown_period=cooldown if min_replicas == 0 else 0,
        modifiers=modifiers,
    )  # fmt: skip


def fallback(triggers: Sequence[Trigger], min_replicas: int) -> dict[str, Json]:
    """Hold what runs while a source of metrics is out; never fewer than the minimum.

    At minimum 0 the floor is 0: an idle service must not be woken because Prometheus went down, and a busy one is
    held by its current count and carried by the request trigger. KEDA refuses a fallback for cpu and memory alone.
    """
    if all(trigger.type in ("cpu", "memory") for trigger in triggers):
        return {}
    return {"failureThreshold": 3, "replicas": min_replicas, "behavior": "currentReplicasIfHigher"}


def merged_behavior(subject: Subject, max_replicas: int, written: Mapping[str, Json]) -> dict[str, Json]:
    """A step up is as large as a quarter of the maximum and waits until the last step could help: latency does not
    fall while replicas load, and a scaler that does not wait runs to the maximum. What the user wrote wins."""
    patience = min(1800, max(60, subject.start_budget_s if subject.model_bytes else 60))
    default: dict[str, Json] = {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": max(1, math.ceil(max_replicas / 4)), "periodSeconds": patience}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": min(3600, max(300, 2 * subject.load_seconds)),
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        },
    }
    return {side: {**numbers, **(written.get(side) or {})} for side, numbers in default.items()}
