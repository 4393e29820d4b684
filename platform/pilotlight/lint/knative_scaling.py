"""Rules for the autoscaling annotations of a Knative Service."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from pilotlight.k8s import quantities
from pilotlight.lint.rule import Hits, LintContext, Part, rule

GROUP: Final = "autoscaling.knative.dev/"
KPA: Final = "kpa.autoscaling.knative.dev"
HPA: Final = "hpa.autoscaling.knative.dev"
KPA_METRICS: Final = ("concurrency", "rps")
KEYS: Final = frozenset({
    "activation-scale", "class", "initial-scale", "max-scale", "metric", "metric-aggregation-algorithm", "min-scale",
    "panic-threshold-percentage", "panic-window-percentage", "scale-down-delay", "scale-to-zero-pod-retention-period",
    "target", "target-burst-capacity", "target-utilization-percentage", "window",
})  # fmt: skip
# Minimum and maximum; a burst capacity of -1 keeps the activator in the path.
NUMBERS: Final[dict[str, tuple[float, float]]] = {
    "target": (0.01, float("inf")),
    "target-utilization-percentage": (1, 100),
    "panic-window-percentage": (1, 100),
    "panic-threshold-percentage": (110, 1000),
    "target-burst-capacity": (-1, float("inf")),
    "min-scale": (0, 2**31 - 1),
    "max-scale": (0, 2**31 - 1),
    "initial-scale": (0, 2**31 - 1),
}
# Minimum and maximum in seconds, and whether fractions of a second are rejected.
DURATIONS: Final[dict[str, tuple[float, float, bool]]] = {
    "window": (6, 3600, True),
    "scale-down-delay": (0, 3600, True),
    "scale-to-zero-pod-retention-period": (0, 3600, False),
}


def annotation(service: Part, key: str) -> Part:
    """Return an annotation by its kebab-case name, or its legacy one if only that is set."""
    annotations = service.get("spec", "template", "metadata", "annotations")
    current = annotations.get(GROUP + key)
    return current if current else annotations.get(GROUP + camel(key))


def annotations(service: Part) -> Iterator[tuple[str, Part]]:
    """Yield the autoscaling annotations of the template, by name without the group."""
    for entry in service.get("spec", "template", "metadata", "annotations").entries():
        if entry.key.startswith(GROUP):
            yield entry.key.removeprefix(GROUP), entry


def camel(key: str) -> str:
    first, *rest = key.split("-")
    return first + "".join(word.capitalize() for word in rest)


LEGACY: Final = {camel(key): key for key in KEYS if "-" in key}


@rule("PL450")
def on_the_service(service: Part, _: LintContext) -> Hits:
    for entry in service.get("metadata", "annotations").entries():
        if entry.key.startswith(GROUP):
            yield entry, f"{entry.key} has no effect here; move it to spec.template.metadata.annotations"


@rule("PL451")
def legacy_name(service: Part, _: LintContext) -> Hits:
    for key, entry in annotations(service):
        if key in LEGACY:
            yield entry, f"{entry.key} is the legacy name; write {GROUP}{LEGACY[key]}"


@rule("PL452")
def unknown_annotation(service: Part, _: LintContext) -> Hits:
    for key, entry in annotations(service):
        if key not in KEYS and key not in LEGACY:
            near = get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {GROUP}{near[0]}?" if near else f"known are {', '.join(sorted(KEYS))}"
            yield entry, f"Knative does not know {entry.key}; {hint}"


@rule("PL453")
def hpa_at_zero(service: Part, _: LintContext) -> Hits:
    least = annotation(service, "min-scale")
    if annotation(service, "class").text() == HPA and least.integer(0) == 0:
        message = 'class hpa never scales to zero; write min-scale "1" or use the kpa class'
        yield least or annotation(service, "class"), message


@rule("PL454")
def metric_of_class(service: Part, _: LintContext) -> Hits:
    metric, class_name = annotation(service, "metric"), annotation(service, "class").text(KPA)
    if metric and class_name == KPA and metric.text() not in KPA_METRICS:
        message = f"metric = {metric.text()}, must be concurrency or rps with the kpa class; cpu and memory need {HPA}"
        yield metric, message
    elif class_name.endswith(".knative.dev") and class_name not in (KPA, HPA):
        yield annotation(service, "class"), f"class = {class_name}, must be {KPA} or {HPA}"


@rule("PL455")
def numbers(service: Part, _: LintContext) -> Hits:
    for key, (least, most) in NUMBERS.items():
        entry = annotation(service, key)
        number = entry.number()
        fraction = key.endswith("-scale") and number is not None and not number.is_integer()
        between = key == "target-burst-capacity" and number is not None and -1 < number < 0
        if entry and (number is None or not least <= number <= most or fraction or between):
            bounds = f"at least {least:g}" if most > 2**30 else f"{least:g} to {most:g}"
            message = f"{key} = {entry.text()}, must be a {'whole ' if key.endswith('-scale') else ''}number, {bounds}"
            yield entry, message


@rule("PL456")
def durations(service: Part, _: LintContext) -> Hits:
    bounded = [(annotation(service, key), *bounds) for key, bounds in DURATIONS.items()]
    template = service.get("spec", "template", "metadata", "annotations")
    bounded.append((template.get("serving.knative.dev/progress-deadline"), 0, 2**31 - 1, True))
    bounded.append((service.get("metadata", "annotations", "serving.knative.dev/rollout-duration"), 0, 2**31 - 1, True))
    for entry, least, most, whole in bounded:
        seconds = quantities.parse_duration(entry.text())
        if entry and (seconds is None or not least <= seconds <= most or (whole and not seconds.is_integer())):
            bounds = f"{least:g}s to {most:g}s" if most <= 3600 else "not negative"
            bounds += ", in whole seconds" if whole else ""
            yield entry, f"{entry.key} = {entry.text()}, must be a duration as 90s, {bounds}"


@rule("PL457")
def activation_scale(service: Part, _: LintContext) -> Hits:
    scale, least, most = (annotation(service, key) for key in ("activation-scale", "min-scale", "max-scale"))
    count = scale.integer(0)
    if scale and (count < 2 or count < least.integer(0) or 0 < most.integer(0) < count):
        yield scale, f"activation-scale = {scale.text()}, must be at least 2 and between min-scale and max-scale"


@rule("PL458")
def max_below_min(service: Part, _: LintContext) -> Hits:
    least, most = annotation(service, "min-scale"), annotation(service, "max-scale")
    if 0 < most.integer(0) < least.integer(0):
        yield most, f"max-scale = {most.text()} is below min-scale = {least.text()}"


@rule("PL459")
def target_above_limit(service: Part, _: LintContext) -> Hits:
    target, limit = annotation(service, "target"), service.get("spec", "template", "spec", "containerConcurrency")
    concurrency = annotation(service, "metric").text("concurrency") == "concurrency"
    if concurrency and limit.integer(0) > 0 and (target.number() or 0.0) > limit.integer(0):
        yield target, f"target = {target.text()} has no effect above containerConcurrency = {limit.integer(0)}"


@rule("PL460")
def no_max_scale(service: Part, _: LintContext) -> Hits:
    if service.get("spec", "template") and annotation(service, "max-scale").integer(0) == 0:
        maximum = annotation(service, "max-scale")
        yield maximum or service.get("spec", "template"), "max-scale is not set: the number of pods has no limit"


@rule("PL461")
def initial_scale(service: Part, _: LintContext) -> Hits:
    scale = annotation(service, "initial-scale")
    if scale and scale.integer(1) == 0:
        message = "initial-scale 0 needs allow-zero-initial-scale in config-autoscaler and leaves the revision untried"
        yield scale, message
