"""Read a HorizontalPodAutoscaler or a KEDA ScaledObject, with the defaults of Kubernetes and KEDA."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

from pilotlight.targets.local.scaling import formula
from pilotlight.targets.local.scaling.fields import Fields, object_name
from pilotlight.targets.local.scaling.model import Fallback, Hpa, Metric, Policy, ScalingRules

Json = Any
Kind = Literal["Value", "AverageValue", "Utilization"]

# Kubernetes' default behavior: scale up at once, scale down to the highest recommendation of the last 5 min.
DEFAULT_UP: Final = ScalingRules((Policy("Pods", 4, 15), Policy("Percent", 100, 15)), "Max", 0.0)
DEFAULT_DOWN: Final = ScalingRules((Policy("Percent", 100, 15),), "Max", 300.0)
KEDA: Final = "autoscaling.keda.sh/"
BEHAVIORS: Final = (
    "static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower", "scalingModifiers",
)  # fmt: skip
DEFAULT_CONCURRENCY: Final = 10.0
DEFAULT_UTILIZATION: Final = 80.0


def horizontal(manifest: Mapping[str, Json]) -> Hpa:
    spec = Fields(object_name(manifest), "spec", manifest.get("spec"))
    low, high = spec.count("minReplicas", 1, 1), spec.count("maxReplicas", 0, 0)
    if high < low:
        raise spec.error("maxReplicas", f"must be at least minReplicas = {low}")
    metrics = tuple(_resource(item) for item in spec.items("metrics"))
    default = (Metric("cpu", "cpu", "Utilization", DEFAULT_UTILIZATION),)
    up, down = _behavior(spec.within("behavior"))
    return Hpa(low, high, metrics or default, up, down)


def _resource(item: Fields) -> Metric:
    if item.text("type") != "Resource":
        raise item.error("type", "must be Resource on one machine; use a ScaledObject for anything else")
    resource = item.within("resource")
    name = cast(Literal["cpu", "memory"], resource.one_of("name", "", "cpu", "memory"))
    target = resource.within("target")
    if target.one_of("type", "Utilization", "Utilization", "AverageValue") == "Utilization":
        return Metric(name, name, "Utilization", float(target.count("averageUtilization", 80, 1)))
    return Metric(name, name, "AverageValue", target.number("averageValue", None, 1e-9, float("inf")))


def _behavior(behavior: Fields) -> tuple[ScalingRules, ScalingRules]:
    return _rules(behavior.within("scaleUp"), DEFAULT_UP), _rules(behavior.within("scaleDown"), DEFAULT_DOWN)


def _rules(fields: Fields, default: ScalingRules) -> ScalingRules:
    policies = tuple(_policy(item) for item in fields.items("policies"))
    select = fields.one_of("selectPolicy", "Max", "Max", "Min", "Disabled")
    window = fields.number("stabilizationWindowSeconds", default.window_s, 0, 3600)
    return ScalingRules(policies or default.policies, cast(Literal["Max", "Min", "Disabled"], select), window)


def _policy(item: Fields) -> Policy:
    kind = cast(Literal["Pods", "Percent"], item.one_of("type", "", "Pods", "Percent"))
    return Policy(kind, item.count("value", 0, 1), item.number("periodSeconds", None, 1, 1800))


def scaled_object(manifest: Mapping[str, Json]) -> Hpa:
    owner = object_name(manifest)
    spec = Fields(owner, "spec", manifest.get("spec"))
    advanced = spec.within("advanced")
    up, down = _behavior(advanced.within("horizontalPodAutoscalerConfig").within("behavior"))
    low, high = spec.count("minReplicaCount", 0), spec.count("maxReplicaCount", 100)
    if high < max(low, 1):
        raise spec.error("maxReplicaCount", f"must be at least {max(low, 1)}")
    metrics = tuple(_trigger(item, index) for index, item in enumerate(spec.items("triggers")))
    if not metrics:
        raise spec.error("triggers", "must name at least one trigger")
    annotations = Fields(owner, "metadata.annotations", (manifest.get("metadata") or {}).get("annotations"))
    modifiers = advanced.within("scalingModifiers")
    return Hpa(
        low, high, metrics, up, down,
        keda=True,
        polling_s=spec.number("pollingInterval", 30, 1),
        cooldown_s=spec.number("cooldownPeriod", 300, 0),
        initial_cooldown_s=spec.number("initialCooldownPeriod", 0, 0),
        idle_replicas=_idle(spec, low),
        fallback=_fallback(spec.within("fallback")) if "fallback" in spec else None,
        **_paused(annotations),
        **_modifiers(modifiers, metrics),
    )  # fmt: skip


def _idle(spec: Fields, low: int) -> int | None:
    if "idleReplicaCount" not in spec:
        return None
    idle = spec.count("idleReplicaCount", 0)
    if idle >= low:
        raise spec.error("idleReplicaCount", f"must be below minReplicaCount = {low}")
    return idle


def _fallback(fields: Fields) -> Fallback:
    behavior = fields.one_of("behavior", "static", *BEHAVIORS)
    return Fallback(fields.count("failureThreshold", 0), fields.count("replicas", 0), behavior)


def _paused(annotations: Fields) -> dict[str, Any]:
    key = f"{KEDA}paused-replicas"
    return {
        "paused": annotations.flag(f"{KEDA}paused"),
        "paused_replicas": annotations.count(key, 0) if key in annotations else None,
        "paused_in": annotations.flag(f"{KEDA}paused-scale-in"),
        "paused_out": annotations.flag(f"{KEDA}paused-scale-out"),
        "force_activation": annotations.flag(f"{KEDA}force-activation"),
    }


def _modifiers(fields: Fields, metrics: tuple[Metric, ...]) -> dict[str, Any]:
    text = fields.text("formula")
    if not text:
        return {}
    known = {metric.name for metric in metrics if metric.source not in ("cpu", "memory")}
    if problem := formula.find_problem(text, known):
        raise fields.error("formula", problem)
    return {
        "formula": text,
        "formula_target": fields.number("target", None, 1e-9),
        "formula_activation": fields.number("activationTarget", 0, 0),
        "formula_kind": fields.one_of("metricType", "AverageValue", "AverageValue", "Value"),
    }


def _trigger(item: Fields, index: int) -> Metric:
    kind = item.text("type")
    if kind not in _TRIGGERS:
        known = ", ".join(_TRIGGERS)
        raise item.error("type", f"must be one of {known} on one machine; use --target kubernetes for any other")
    return _TRIGGERS[kind](item, item.text("name") or f"s{index}-{kind}")


def _prometheus(item: Fields, name: str) -> Metric:
    data = item.within("metadata")
    if not data.text("query").strip():
        raise data.error("query", "must be a query")
    return Metric(
        name, "prometheus", cast(Kind, item.one_of("metricType", "AverageValue", "AverageValue", "Value")),
        data.number("threshold", None, 1e-9, float("inf")),
        data.number("activationThreshold", 0, 0, float("inf")),
        query=data.text("query"),
        server=data.text("serverAddress"),
        ignore_null=data.flag("ignoreNullValues", True),
    )  # fmt: skip


def _requests(item: Fields, name: str) -> Metric:
    """Waiting and in-flight requests at the gateway; the trigger's scalerAddress is ignored here."""
    data = item.within("metadata")
    return Metric(name, "requests", "AverageValue", data.number("targetConcurrency", DEFAULT_CONCURRENCY, 0.01))


def _resource_trigger(item: Fields, name: str) -> Metric:
    source = cast(Literal["cpu", "memory"], item.text("type"))
    kind = cast(Kind, item.one_of("metricType", "Utilization", "Utilization", "AverageValue"))
    return Metric(name, source, kind, item.within("metadata").number("value", None, 1e-9, float("inf")))


_TRIGGERS: Final[dict[str, Callable[[Fields, str], Metric]]] = {
    "prometheus": _prometheus,
    "external-push": _requests,
    "cpu": _resource_trigger,
    "memory": _resource_trigger,
}
