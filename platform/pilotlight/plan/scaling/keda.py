"""Construction of KEDA triggers; all are built here, so that unsafe combinations cannot occur.

Latency scales by Value (AverageValue ignores the current count), an empty or NaN result never counts as zero latency, a
failing Prometheus holds the replicas, and only requests wake a service from zero. The reasons:
docs/concepts/autoscaling.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, Final

from pilotlight.k8s.cron import Schedule
from pilotlight.plan import document_annotations
from pilotlight.plan.component_context import PlanContext
from pilotlight.plan.types import Scaling, Trigger
from pilotlight.prometheus import metric_queries
from pilotlight.prometheus.metric_queries import Measure
from pilotlight.spec.service import ScalingMetric

Json = Any
LEAST_VERSION: Final = (2, 18)
OTEL_SCALER: Final = "keda-otel-scaler.keda.svc:4318"
# Above any latency: at zero replicas only requests may activate, not the latency of past ones.
NEVER_ACTIVE: Final = "1000000"
# KEDA rounds thresholds and values to three decimals, and rejects a threshold of 0. Below this, rounding loses more
# than 1 %.
LEAST_THRESHOLD: Final = Decimal("0.1")
POLLING_S: Final = 15
LEAST_COOLDOWN_S: Final = 300
REQUESTS_TRIGGER: Final = "requests"
GATEWAY: Final = "gateway"
HTTP_ADD_ON: Final = "http-add-on"


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """Specification of a Prometheus trigger."""

    name: str
    query: str
    threshold: str
    measure: Measure
    address: str
    inverted: bool = False
    has_request_rate: bool = True  # our predictor exports it, so an idle service is not taken for a slow one
    authentication: Mapping[str, str] | None = None
    auth_modes: str = ""


def is_supported(version: str) -> bool:
    parts = [int(part) for part in version.lstrip("v").split(".")[:2] if part.isdigit()]
    return tuple(parts) >= LEAST_VERSION


def prometheus(context: PlanContext, spec: TriggerSpec, min_replicas: int) -> Trigger:
    """Build a Prometheus trigger with a guarded query and the metric type that fits its measure."""
    from_zero = min_replicas == 0
    spec = _rescaled(context, spec)
    metadata = {
        "serverAddress": spec.address,
        "query": _query(context, spec, from_zero),
        "threshold": "1" if spec.inverted else spec.threshold,
        "activationThreshold": NEVER_ACTIVE if from_zero else "0",
        # An empty result is an error, which the fallback handles, instead of a latency of 0.
        "ignoreNullValues": "false",
    }
    if spec.auth_modes:
        metadata["authModes"] = spec.auth_modes
    level = spec.inverted or spec.measure == "level"
    return Trigger(
        "prometheus", spec.name, metadata, "Value" if level else "AverageValue", dict(spec.authentication or {})
    )


def _query(context: PlanContext, spec: TriggerSpec, from_zero: bool) -> str:
    guard = partial(metric_queries.guarded, spec.query, spec.measure)
    if spec.inverted:
        guard = partial(metric_queries.inverted, spec.query, spec.threshold)
    service, counted = context.service, spec.has_request_rate
    return guard(service.name, service.namespace, from_zero=from_zero, has_request_rate=counted)


def _rescaled(context: PlanContext, spec: TriggerSpec) -> TriggerSpec:
    """Scale query and threshold by powers of 1000 where KEDA would round them to nothing.

    Not with a formula, which expects the original units, nor for an inverted query, whose threshold is 1.
    """
    threshold, factor = Decimal(spec.threshold), 1
    while threshold * factor < LEAST_THRESHOLD and not (
        spec.inverted or context.annotation(document_annotations.FORMULA)
    ):
        factor *= 1000
    if factor == 1:
        return spec
    return replace(spec, query=f"{factor} * (\n{spec.query}\n)", threshold=f"{(threshold * factor).normalize():f}")


def request_trigger(context: PlanContext, target: int) -> Trigger | None:
    """Build the trigger that wakes from zero by requests at the activator.

    Return None if the target has none, or not the one that the document names.
    """
    capabilities, available = context.capabilities, activators(context)
    named = context.annotation(document_annotations.WAKE_BY)
    chosen = next((each for each in available if named in ("", each)), "")
    if chosen == GATEWAY:
        metadata = {
            "scalerAddress": capabilities.gateway_scaler,
            "service": context.service.name,
            "namespace": context.service.namespace,
            "workload": context.name,
            "targetConcurrency": str(target),
        }
        return Trigger("external-push", REQUESTS_TRIGGER, metadata)
    if chosen == HTTP_ADD_ON:
        metadata = {"scalerAddress": capabilities.http_scaler, "interceptorRoute": context.name}
        return Trigger("external-push", REQUESTS_TRIGGER, metadata)
    return None


def activators(context: PlanContext) -> list[str]:
    """Return the activators of this target, the preferred one first."""
    capabilities = context.capabilities
    installed = {GATEWAY: capabilities.our_gateway, HTTP_ADD_ON: capabilities.http_add_on}
    return [name for name, present in installed.items() if present]


def resource(name: str, value: str, utilization: bool) -> Trigger:
    return Trigger(name, name, {"value": value}, "Utilization" if utilization else "AverageValue")


def cron(schedule: Schedule) -> Trigger:
    """Build a trigger that starts replicas before requests come. It may wake a service from zero by itself."""
    metadata = {
        "timezone": schedule.timezone, "start": schedule.start, "end": schedule.end,
        "desiredReplicas": str(schedule.replicas),
    }  # fmt: skip
    return Trigger("cron", "schedule", metadata)


def graphite(name: str, metric: ScalingMetric) -> Trigger:
    """Build a Graphite trigger; its queries cannot be guarded, but a level still scales by Value."""
    metadata = {
        "serverAddress": metric.server_address,
        "query": metric.query,
        "threshold": metric.target,
        "queryTime": "-2Minutes",
        "activationThreshold": NEVER_ACTIVE,
    }
    level = metric.target_type == "Value" or metric_queries.is_level(metric.query)
    return Trigger("graphite", name, metadata, "Value" if level else "AverageValue", dict(metric.authentication))


def pod_metric(context: PlanContext, name: str, metric: ScalingMetric) -> Trigger:
    """Build a trigger for KServe's PodMetric: KEDA's OpenTelemetry add-on sums over all pods of the workload."""
    filters = f'namespace="{context.service.namespace}", deployment="{context.name}"'
    metadata = {
        "scalerAddress": metric.server_address or OTEL_SCALER,
        "metricQuery": f"sum({metric.query or metric.name}{{{filters}}})",
        "targetValue": metric.target,
    }
    return Trigger("external", name, metadata, "AverageValue", dict(metric.authentication))


def scaled_object(
    context: PlanContext, min_replicas: int, max_replicas: int, triggers: Sequence[Trigger],
    behavior: Mapping[str, Json], modifiers: Mapping[str, Json],
) -> Scaling:  # fmt: skip
    """Return the settings of a ScaledObject; its timing follows from the start time of a replica."""
    # A start whose request has given up must still complete: with a shorter cooldown the next one starts over.
    cooldown = max(LEAST_COOLDOWN_S, context.allowed_start_s)
    return Scaling(
        "keda", min_replicas, max_replicas,
        triggers=tuple(triggers),
        behavior=merged_behavior(context, max_replicas, behavior),
        fallback=fallback(triggers, min_replicas),
        polling_interval=POLLING_S,
        cooldown_period=cooldown,
        initial_cooldown_period=cooldown if min_replicas == 0 else 0,
        modifiers=modifiers,
    )  # fmt: skip


def fallback(triggers: Sequence[Trigger], min_replicas: int) -> dict[str, Json]:
    """Return the fallback: hold the current replicas while a metric source is down, at least the minimum.

    At minimum 0 the floor is 0: an outage of Prometheus must not wake an idle service, and a busy one is held by its
    current count and the request trigger. KEDA rejects a fallback for cpu and memory alone.
    """
    if all(trigger.type in ("cpu", "memory") for trigger in triggers):
        return {}
    return {"failureThreshold": 3, "replicas": min_replicas, "behavior": "currentReplicasIfHigher"}


def merged_behavior(context: PlanContext, max_replicas: int, written: Mapping[str, Json]) -> dict[str, Json]:
    """Return the HPA behavior; the user's settings win over these defaults.

    A step up is at most a quarter of the maximum and waits for the previous one to take effect: latency does not fall
    while replicas load, and a scaler that does not wait runs to the maximum.
    """
    period_s = min(1800, max(60, context.start_budget_s if context.model_bytes else 60))
    default: dict[str, Json] = {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": max(1, math.ceil(max_replicas / 4)), "periodSeconds": period_s}],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": min(3600, max(300, 2 * context.load_seconds)),
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
        },
    }
    return {direction: {**numbers, **(written.get(direction) or {})} for direction, numbers in default.items()}
