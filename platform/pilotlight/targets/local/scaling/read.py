"""The rules of a workload out of its manifests: the first step of scaling, run when a service is applied.

    Knative Service                    → Kpa, by its template's annotations; Hpa with the hpa class
    any workload + ScaledObject or HPA → Hpa (read_hpa.py)
    any other workload                 → Fixed

A field that no cluster would accept is refused here with the object's name, the field and what it must be.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal, cast

from pilotlight.errors import UsageError
from pilotlight.targets.local.scaling import read_hpa
from pilotlight.targets.local.scaling.fields import MANY, Fields, object_name
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
    """`autoscaler` is the ScaledObject or HorizontalPodAutoscaler that points to the workload, if there is one."""
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
    given = _Annotations(annotations)
    if given.one_of("class", KPA_CLASS, KPA_CLASS, HPA_CLASS) == HPA_CLASS:
        return _knative_hpa(given)
    return _check(_kpa(given, annotations, concurrency), given)


class _Annotations:
    """`autoscaling.knative.dev/…` by their short names; Knative also reads the older spelling in camel case."""

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

    def number(self, name: str, default: float, low: float, high: float = float(MANY)) -> float:
        return self._fields.number(self.key(name), default, low, high)

    def seconds(self, name: str, default: float, low: float = 0.0) -> float:
        return self._fields.seconds(self.key(name), default, low)


def _kpa(given: _Annotations, annotations: Fields, concurrency: int) -> Kpa:
    usual = Kpa()
    metric = cast(Literal["concurrency", "rps"], given.one_of("metric", "concurrency", "concurrency", "rps"))
    weights = ("weighted-exponential", "weightedExponential")
    algorithm = given.one_of("metric-aggregation-algorithm", "linear", "linear", *weights)
    default = DEFAULT_RPS if metric == "rps" else float(concurrency or DEFAULT_CONCURRENCY)
    return Kpa(
        metric=metric,
        target=given.number("target", default, 0.01),
        utilization=given.number("target-utilization-percentage", 70.0, 1, 100) / 100,
        min_scale=given.count("min-scale", usual.min_scale),
        max_scale=given.count("max-scale", usual.max_scale),
        initial_scale=given.count("initial-scale", usual.initial_scale),
        activation_scale=given.count("activation-scale", usual.activation_scale, 2),
        window_s=given.seconds("window", usual.window_s, 6),
        panic_window_percent=given.number("panic-window-percentage", usual.panic_window_percent, 1, 100),
        panic_threshold_percent=given.number("panic-threshold-percentage", usual.panic_threshold_percent, 110, 1000),
        burst_capacity=_burst(given, usual.burst_capacity),
        scale_down_delay_s=given.seconds("scale-down-delay", usual.scale_down_delay_s),
        retention_s=given.seconds("scale-to-zero-pod-retention-period", usual.retention_s),
        algorithm="linear" if algorithm == "linear" else "weightedExponential",
        container_concurrency=concurrency,
        progress_s=annotations.seconds(PROGRESS_DEADLINE, usual.progress_s, 0, DAY),
    )


def _burst(given: _Annotations, default: float) -> float:
    capacity = given.number("target-burst-capacity", default, -1)
    if -1 < capacity < 0:
        raise given.error("target-burst-capacity", "must be -1, 0 or more")
    return capacity


def _check(rules: Kpa, given: _Annotations) -> Kpa:
    """Bounds that contradict each other."""
    if rules.max_scale and rules.max_scale < rules.min_scale:
        raise given.error("max-scale", f"must be at least min-scale = {rules.min_scale}")
    if "activation-scale" in given and rules.activation_scale < rules.min_scale:
        raise given.error("activation-scale", f"must be at least min-scale = {rules.min_scale}")
    if rules.max_scale and "activation-scale" in given and rules.activation_scale > rules.max_scale:
        raise given.error("activation-scale", f"must be at most max-scale = {rules.max_scale}")
    return rules


def _knative_hpa(given: _Annotations) -> Hpa:
    """The HPA that Knative makes for its hpa class: cpu in percent of what is requested, memory in MiB per pod."""
    metric = given.one_of("metric", "cpu", "cpu", "memory")
    if metric == "memory":
        found = Metric(metric, "memory", "AverageValue", given.number("target", 0, 1) * 2**20)
    else:
        found = Metric(metric, "cpu", "Utilization", given.number("target", 80.0, 1))
    rules = Hpa(
        max(1, given.count("min-scale", 1)), given.count("max-scale", 0) or MANY, (found,),
        read_hpa.DEFAULT_UP, read_hpa.DEFAULT_DOWN,
    )  # fmt: skip
    if "window" not in given:
        return rules
    window = given.seconds("window", 60.0, 6)
    return replace(rules, up=replace(rules.up, window_s=window), down=replace(rules.down, window_s=window))
