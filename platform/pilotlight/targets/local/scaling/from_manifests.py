"""Scaling rules of a workload from its manifests, with the defaults of Knative, Kubernetes and KEDA; read on apply.

A Knative Service gives Kpa, or Hpa with the hpa class; a ScaledObject or HorizontalPodAutoscaler Hpa; else Fixed.
A field that no cluster would accept is refused with the object's name, the field and its valid values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, cast

from pilotlight.errors import UsageError
from pilotlight.k8s import quantities
from pilotlight.k8s.autoscaling_annotations import HPA_CLASS, KNATIVE_AUTOSCALING, KPA_CLASS, MAX_INT32, camel
from pilotlight.k8s.cron import Schedule
from pilotlight.targets.local.scaling import keda_formula
from pilotlight.targets.local.scaling.types import Fallback, Fixed, Hpa, Kpa, Metric, Policy, Scaling, ScalingRules

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
PROGRESS_DEADLINE: Final = "serving.knative.dev/progress-deadline"
KNATIVE_CONCURRENCY: Final = 100.0
DEFAULT_RPS: Final = 200.0
DAY: Final = 86400.0


def object_name(manifest: Mapping[str, Json]) -> str:
    return f"{manifest.get('kind') or 'object'} {(manifest.get('metadata') or {}).get('name') or 'without a name'}"


def quantity_of(text: str) -> float | None:
    value = quantities.parse_quantity(text)
    return None if value is None else float(value)


class Fields:
    """Fields of one part of an object. Absent and null read as the default."""

    def __init__(self, owner: str, path: str, values: Mapping[str, Json] | None) -> None:
        self.owner, self.path, self.values = owner, path, values or {}

    def _written(self, key: str) -> str:
        """Return the name that a field has in the object."""
        return key

    def _value(self, key: str) -> Json:
        return self.values.get(self._written(key))

    def error(self, key: str, must: str) -> UsageError:
        value = self._value(key)
        return UsageError(f"{self.owner}: {self._path(key)} = {value if value is not None else 'nothing'}, {must}")

    def __contains__(self, key: str) -> bool:
        return self._value(key) is not None

    def text(self, key: str, default: str = "") -> str:
        value = self._value(key)
        return default if value is None else str(value)

    def flag(self, key: str, default: bool = False) -> bool:
        text = self.text(key, str(default)).lower()
        if text not in ("true", "false"):
            raise self.error(key, "must be true or false")
        return text == "true"

    def one_of(self, key: str, default: str, *choices: str) -> str:
        value = self.text(key) or default
        if value not in choices:
            raise self.error(key, f"must be {', '.join(choices[:-1])} or {choices[-1]}")
        return value

    def count(self, key: str, default: int, low: int = 0) -> int:
        if key not in self:
            return default
        text = self.text(key).strip()
        if not re.fullmatch(r"[+-]?\d+", text) or not low <= int(text) <= MAX_INT32:
            raise self.error(key, f"must be a whole number from {low}")
        return int(text)

    def number(self, key: str, default: float | None, low: float, high: float = float(MAX_INT32)) -> float:
        value = default if key not in self else quantity_of(self.text(key))
        if value is None or not low <= value <= high:
            raise self.error(key, f"must be a number from {low:g}" + (f" to {high:g}" if high < MAX_INT32 else ""))
        return value

    def seconds(self, key: str, default: float, low: float = 0.0, high: float = 3600.0) -> float:
        if key not in self:
            return default
        value = quantities.unsigned_duration(self.text(key))
        if value is None or not low <= value <= high:
            raise self.error(key, f"must be a duration from {low:g}s to {high:g}s")
        return value

    def within(self, key: str) -> "Fields":
        value = self._value(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(key, "must be a mapping")
        return Fields(self.owner, self._path(key), value)

    def items(self, key: str) -> list["Fields"]:
        values = self._value(key)
        if values is not None and (isinstance(values, str) or not isinstance(values, Sequence)):
            raise self.error(key, "must be a list")
        return [Fields(self.owner, f"{self._path(key)}[{index}]", item) for index, item in enumerate(values or ())]

    def _path(self, key: str) -> str:
        key = self._written(key)
        return f"{self.path}[{key}]" if "/" in key else f"{self.path}.{key}" if self.path else key


class _Autoscaling(Fields):
    """Annotations `autoscaling.knative.dev/…` by short name, also in Knative's older camel-case spelling."""

    def _written(self, key: str) -> str:
        current, legacy = KNATIVE_AUTOSCALING + key, KNATIVE_AUTOSCALING + camel(key)
        return legacy if self.values.get(current) is None and self.values.get(legacy) is not None else current


def scaling_of(workload: Mapping[str, Json], autoscaler: Mapping[str, Json] | None) -> Scaling:
    """Return the rules; `autoscaler` is the ScaledObject or HorizontalPodAutoscaler that targets the workload."""
    if str(workload.get("apiVersion", "")).startswith("serving.knative.dev/"):
        return _knative(workload)
    if autoscaler is None:
        return Fixed(Fields(object_name(workload), "spec", workload.get("spec")).count("replicas", 1))
    readers = {"ScaledObject": scaled_object, "HorizontalPodAutoscaler": horizontal}
    kind = str(autoscaler.get("kind"))
    if kind not in readers:
        raise UsageError(f"{object_name(autoscaler)}: kind = {kind}, must be {' or '.join(readers)}")
    return readers[kind](autoscaler)


def _knative(service: Mapping[str, Json]) -> Scaling:
    template = Fields(object_name(service), "spec", service.get("spec")).within("template")
    annotations = template.within("metadata").within("annotations")
    concurrency = template.within("spec").count("containerConcurrency", 0)
    autoscaling = _Autoscaling(annotations.owner, annotations.path, annotations.values)
    if autoscaling.one_of("class", KPA_CLASS, KPA_CLASS, HPA_CLASS) == HPA_CLASS:
        return _knative_hpa(autoscaling)
    return _check_bounds(_kpa(autoscaling, annotations, concurrency), autoscaling)


def _kpa(autoscaling: _Autoscaling, annotations: Fields, concurrency: int) -> Kpa:
    defaults = Kpa()
    burst = autoscaling.number("target-burst-capacity", defaults.burst_capacity, -1)
    if -1 < burst < 0:
        raise autoscaling.error("target-burst-capacity", "must be -1, 0 or more")
    metric = cast(Literal["concurrency", "rps"], autoscaling.one_of("metric", "concurrency", "concurrency", "rps"))
    weights = ("weighted-exponential", "weightedExponential")
    algorithm = autoscaling.one_of("metric-aggregation-algorithm", "linear", "linear", *weights)
    default = DEFAULT_RPS if metric == "rps" else float(concurrency or KNATIVE_CONCURRENCY)
    return Kpa(
        metric=metric,
        target=autoscaling.number("target", default, 0.01),
        utilization=autoscaling.number("target-utilization-percentage", 70.0, 1, 100) / 100,
        min_scale=autoscaling.count("min-scale", defaults.min_scale),
        max_scale=autoscaling.count("max-scale", defaults.max_scale),
        initial_scale=autoscaling.count("initial-scale", defaults.initial_scale),
        activation_scale=autoscaling.count("activation-scale", defaults.activation_scale, 2),
        window_s=autoscaling.seconds("window", defaults.window_s, 6),
        panic_window_percent=autoscaling.number("panic-window-percentage", defaults.panic_window_percent, 1, 100),
        panic_threshold_percent=autoscaling.number(
            "panic-threshold-percentage", defaults.panic_threshold_percent, 110, 1000
        ),
        burst_capacity=burst,
        scale_down_delay_s=autoscaling.seconds("scale-down-delay", defaults.scale_down_delay_s),
        retention_s=autoscaling.seconds("scale-to-zero-pod-retention-period", defaults.retention_s),
        algorithm="linear" if algorithm == "linear" else "weightedExponential",
        container_concurrency=concurrency,
        progress_s=annotations.seconds(PROGRESS_DEADLINE, defaults.progress_s, 0, DAY),
    )


def _check_bounds(rules: Kpa, autoscaling: _Autoscaling) -> Kpa:
    """Raise UsageError for bounds that contradict each other."""
    if rules.max_scale and rules.max_scale < rules.min_scale:
        raise autoscaling.error("max-scale", f"must be at least min-scale = {rules.min_scale}")
    if "activation-scale" in autoscaling and rules.activation_scale < rules.min_scale:
        raise autoscaling.error("activation-scale", f"must be at least min-scale = {rules.min_scale}")
    if rules.max_scale and "activation-scale" in autoscaling and rules.activation_scale > rules.max_scale:
        raise autoscaling.error("activation-scale", f"must be at most max-scale = {rules.max_scale}")
    return rules


def _knative_hpa(autoscaling: _Autoscaling) -> Hpa:
    """Return the HPA that Knative creates for its hpa class: cpu in percent of the request, memory in MiB per pod."""
    name = autoscaling.one_of("metric", "cpu", "cpu", "memory")
    if name == "memory":
        metric = Metric(name, "memory", "AverageValue", autoscaling.number("target", 0, 1) * 2**20)
    else:
        metric = Metric(name, "cpu", "Utilization", autoscaling.number("target", 80.0, 1))
    rules = Hpa(
        max(1, autoscaling.count("min-scale", 1)), autoscaling.count("max-scale", 0) or MAX_INT32, (metric,),
        DEFAULT_UP, DEFAULT_DOWN,
    )  # fmt: skip
    if "window" not in autoscaling:
        return rules
    window = autoscaling.seconds("window", 60.0, 6)
    return replace(rules, up=replace(rules.up, window_s=window), down=replace(rules.down, window_s=window))


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
    policies = tuple(
        Policy(
            cast(Literal["Pods", "Percent"], item.one_of("type", "", "Pods", "Percent")),
            item.count("value", 0, 1), item.number("periodSeconds", None, 1, 1800),
        )
        for item in fields.items("policies")
    )  # fmt: skip
    select = fields.one_of("selectPolicy", "Max", "Max", "Min", "Disabled")
    window = fields.number("stabilizationWindowSeconds", default.window_s, 0, 3600)
    return ScalingRules(policies or default.policies, cast(Literal["Max", "Min", "Disabled"], select), window)


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
    idle = spec.count("idleReplicaCount", 0) if "idleReplicaCount" in spec else None
    if idle is not None and idle >= low:
        raise spec.error("idleReplicaCount", f"must be below minReplicaCount = {low}")
    annotations = Fields(owner, "metadata.annotations", (manifest.get("metadata") or {}).get("annotations"))
    modifiers = advanced.within("scalingModifiers")
    return Hpa(
        low, high, metrics, up, down,
        keda=True,
        polling_s=spec.number("pollingInterval", 30, 1),
        cooldown_s=spec.number("cooldownPeriod", 300, 0),
        initial_cooldown_s=spec.number("initialCooldownPeriod", 0, 0),
        idle_replicas=idle,
        fallback=_fallback(spec.within("fallback")) if "fallback" in spec else None,
        **_paused(annotations),
        **_modifiers(modifiers, metrics),
    )  # fmt: skip


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
    if problem := keda_formula.find_problem(text, known):
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


def _cron(item: Fields, name: str) -> Metric:
    data = item.within("metadata")
    start, end, timezone = (data.text(key) for key in ("start", "end", "timezone"))
    try:
        schedule = Schedule(start, end, timezone, data.count("desiredReplicas", 1, 1))
    except ValueError as error:
        raise item.error("metadata", f"must be a schedule: {error}") from None
    return Metric(name, "cron", "AverageValue", 1.0, schedule=schedule)


_TRIGGERS: Final[dict[str, Callable[[Fields, str], Metric]]] = {
    "prometheus": _prometheus,
    "external-push": _requests,
    "cpu": _resource_trigger,
    "memory": _resource_trigger,
    "cron": _cron,
}
