"""Read the scaling rules of a workload from its manifests, when a service is applied.

    Knative Service                    → Kpa, by its template's annotations; Hpa with the hpa class
    any workload + ScaledObject or HPA → Hpa (read_hpa.py)
    any other workload                 → Fixed

A field that no cluster would accept is refused with the object's name, the field and its valid values.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast

from pilotlight.errors import UsageError
from pilotlight.targets.local.scaling import read_hpa
from pilotlight.targets.local.scaling.fields import MAX_INT32, Fields, object_name
from pilotlight.targets.local.scaling.model import Fixed, Hpa, Kpa, Metric, Scaling

Json = Any
PREFIX: Final = "autoscaling.knative.dev/"
PROGRESS_DEADLINE: Final = "serving.knative.dev/progress-deadline"
KPA_CLASS: Final = "kpa.autoscaling.knative.dev"
HPA_CLASS: Final = "hpa.autoscaling.knative.dev"
DEFAULT_CONCURRENCY: Final = 100.0
DEFAULT_RPS: Final = 200.0
DAY: Final = 86400.0


def scaling_of(workload: Mapping[str, Json], autoscaler: Mapping[str, Json] | None) -> Scaling:
    """Return the rules; `autoscaler` is the ScaledObject or HorizontalPodAutoscaler that targets the workload."""
    if str(workload.get("apiVersion", "")).startswith("serving.knative.dev/"):
        return _knative(workload)
    if autoscaler is None:
        return Fixed(Fields(object_name(workload), "spec", workload.get("spec")).count("replicas", 1))
    readers = {"ScaledObject": read_hpa.scaled_object, "HorizontalPodAutoscaler": read_hpa.horizontal}
    kind = str(autoscaler.get("kind"))
    if kind not in readers:
        raise UsageError(f"{object_name(autoscaler)}: kind = {kind}, must be {' or '.join(readers)}")
    return readers[kind](autoscaler)


def _knative(service: Mapping[str, Json]) -> Scaling:
    template = Fields(object_name(service), "spec", service.get("spec")).within("template")
    annotations = template.within("metadata").within("annotations")
    concurrency = template.within("spec").count("containerConcurrency", 0)
    autoscaling = _Annotations(annotations)
    if autoscaling.one_of("class", KPA_CLASS, KPA_CLASS, HPA_CLASS) == HPA_CLASS:
        return _knative_hpa(autoscaling)
    return _check_bounds(_kpa(autoscaling, annotations, concurrency), autoscaling)


class _Annotations:
    """Annotations `autoscaling.knative.dev/…` by short name, also in Knative's older camel-case spelling."""

    def __init__(self, annotations: Fields) -> None:
        self._fields = annotations

    def key(self, name: str) -> str:
        first, *rest = name.split("-")
        camel = PREFIX + first + "".join(part.capitalize() for part in rest)
        return camel if camel in self._fields and PREFIX + name not in self._fields else PREFIX + name

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self._fields

    def error(self, name: str, must: str) -> UsageError:
        return self._fields.error(self.key(name), must)

    def one_of(self, name: str, default: str, *choices: str) -> str:
        return self._fields.one_of(self.key(name), default, *choices)

    def count(self, name: str, default: int, low: int = 0) -> int:
        return self._fields.count(self.key(name), default, low)

    def number(self, name: str, default: float, low: float, high: float = float(MAX_INT32)) -> float:
        return self._fields.number(self.key(name), default, low, high)

    def seconds(self, name: str, default: float, low: float = 0.0) -> float:
        return self._fields.seconds(self.key(name), default, low)


def _kpa(autoscaling: _Annotations, annotations: Fields, concurrency: int) -> Kpa:
    defaults = Kpa()
    metric = cast(Literal["concurrency", "rps"], autoscaling.one_of("metric", "concurrency", "concurrency", "rps"))
    weights = ("weighted-exponential", "weightedExponential")
    algorithm = autoscaling.one_of("metric-aggregation-algorithm", "linear", "linear", *weights)
    default = DEFAULT_RPS if metric == "rps" else float(concurrency or DEFAULT_CONCURRENCY)
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
        burst_capacity=_burst_capacity(autoscaling, defaults.burst_capacity),
        scale_down_delay_s=autoscaling.seconds("scale-down-delay", defaults.scale_down_delay_s),
        retention_s=autoscaling.seconds("scale-to-zero-pod-retention-period", defaults.retention_s),
        algorithm="linear" if algorithm == "linear" else "weightedExponential",
        container_concurrency=concurrency,
        progress_s=annotations.seconds(PROGRESS_DEADLINE, defaults.progress_s, 0, DAY),
    )


def _burst_capacity(autoscaling: _Annotations, default: float) -> float:
    capacity = autoscaling.number("target-burst-capacity", default, -1)
    if -1 < capacity < 0:
        raise autoscaling.error("target-burst-capacity", "must be -1, 0 or more")
    return capacity


def _check_bounds(rules: Kpa, autoscaling: _Annotations) -> Kpa:
    """Raise UsageError for bounds that contradict each other."""
    if rules.max_scale and rules.max_scale < rules.min_scale:
        raise autoscaling.error("max-scale", f"must be at least min-scale = {rules.min_scale}")
    if "activation-scale" in autoscaling and rules.activation_scale < rules.min_scale:
        raise autoscaling.error("activation-scale", f"must be at least min-scale = {rules.min_scale}")
    if rules.max_scale and "activation-scale" in autoscaling and rules.activation_scale > rules.max_scale:
        raise autoscaling.error("activation-scale", f"must be at most max-scale = {rules.max_scale}")
    return rules


def _knative_hpa(autoscaling: _Annotations) -> Hpa:
    """Return the HPA that Knative creates for its hpa class: cpu in percent of the request, memory in MiB per pod."""
    name = autoscaling.one_of("metric", "cpu", "cpu", "memory")
    if name == "memory":
        metric = Metric(name, "memory", "AverageValue", autoscaling.number("target", 0, 1) * 2**20)
    else:
        metric = Metric(name, "cpu", "Utilization", autoscaling.number("target", 80.0, 1))
    rules = Hpa(
        max(1, autoscaling.count("min-scale", 1)), autoscaling.count("max-scale", 0) or MAX_INT32, (metric,),
        read_hpa.DEFAULT_UP, read_hpa.DEFAULT_DOWN,
    )  # fmt: skip
    if "window" not in autoscaling:
        return rules
    window = autoscaling.seconds("window", 60.0, 6)
    return replace(rules, up=replace(rules.up, window_s=window), down=replace(rules.down, window_s=window))
