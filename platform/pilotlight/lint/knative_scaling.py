"""Rules for the autoscaling annotations of a Knative Service."""

from collections.abc import Iterable, Iterator
from typing import Final

from pilotlight.k8s.autoscaling_annotations import (
    DURATIONS,
    HPA_CLASS,
    KEYS,
    KNATIVE_AUTOSCALING,
    KPA_CLASS,
    MAX_INT32,
    NUMBERS,
    camel,
    required_duration,
    required_value,
)
from pilotlight.lint.rule import Hits, LintContext, Part, rule
from pilotlight.wire.messages import suggestion

KPA_METRICS: Final = ("concurrency", "rps")
LEGACY: Final = {camel(key): key for key in KEYS if "-" in key}


def annotation(service: Part, key: str) -> Part:
    """Return an annotation by its kebab-case name, or its legacy one if only that is set."""
    annotations = service.get("spec", "template", "metadata", "annotations")
    current = annotations.get(KNATIVE_AUTOSCALING + key)
    return current if current else annotations.get(KNATIVE_AUTOSCALING + camel(key))


def annotations(service: Part) -> Iterator[tuple[str, Part]]:
    """Yield the autoscaling annotations of the template, by name without the group."""
    for entry in service.get("spec", "template", "metadata", "annotations").entries():
        if entry.key.startswith(KNATIVE_AUTOSCALING):
            yield entry.key.removeprefix(KNATIVE_AUTOSCALING), entry


@rule("PL450")
def on_the_service(service: Part, _: LintContext) -> Hits:
    for entry in service.get("metadata", "annotations").entries():
        if entry.key.startswith(KNATIVE_AUTOSCALING):
            yield entry, f"{entry.key} has no effect here; move it to spec.template.metadata.annotations"


@rule("PL451")
def legacy_name(service: Part, _: LintContext) -> Hits:
    for key, entry in annotations(service):
        if key in LEGACY:
            yield entry, f"{entry.key} is the legacy name; write {KNATIVE_AUTOSCALING}{LEGACY[key]}"


@rule("PL452")
def unknown_annotation(service: Part, _: LintContext) -> Hits:
    for key, entry in annotations(service):
        if key not in KEYS and key not in LEGACY:
            near = suggestion(key, KEYS).replace("mean ", f"mean {KNATIVE_AUTOSCALING}")
            hint = near or f"; known: {', '.join(sorted(KEYS))}"
            yield entry, f"Knative does not know {entry.key}{hint}"


@rule("PL453")
def hpa_at_zero(service: Part, _: LintContext) -> Hits:
    least = annotation(service, "min-scale")
    if annotation(service, "class").text() == HPA_CLASS and least.integer(0) == 0:
        message = 'class hpa never scales to zero; write min-scale "1" or use the kpa class'
        yield least or annotation(service, "class"), message


@rule("PL454")
def metric_of_class(service: Part, _: LintContext) -> Hits:
    metric, class_name = annotation(service, "metric"), annotation(service, "class").text(KPA_CLASS)
    if metric and class_name == KPA_CLASS and metric.text() not in KPA_METRICS:
        must = f"must be concurrency or rps with the kpa class; cpu and memory need {HPA_CLASS}"
        yield metric, f"metric = {metric.text()}, {must}"
    elif class_name.endswith(".knative.dev") and class_name not in (KPA_CLASS, HPA_CLASS):
        yield annotation(service, "class"), f"class = {class_name}, must be {KPA_CLASS} or {HPA_CLASS}"


@rule("PL455")
def numbers(service: Part, _: LintContext) -> Hits:
    yield from _out_of_bounds(service, NUMBERS.keys() - {"activation-scale"})


@rule("PL456")
def durations(service: Part, _: LintContext) -> Hits:
    yield from _out_of_bounds(service, DURATIONS)
    deadline = service.get("spec", "template", "metadata", "annotations", "serving.knative.dev/progress-deadline")
    for entry in (deadline, service.get("metadata", "annotations", "serving.knative.dev/rollout-duration")):
        if entry and (required := required_duration(entry.text(), 0, MAX_INT32, True)):
            yield entry, f"{entry.key} = {entry.text()}, must be {required}"


def _out_of_bounds(service: Part, keys: Iterable[str]) -> Hits:
    for key in sorted(keys):
        entry = annotation(service, key)
        if entry and (required := required_value(key, entry.text())):
            yield entry, f"{entry.key} = {entry.text()}, must be {required}"


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
        yield most, f"max-scale = {most.text()} is below min-scale = {least.text()}; raise it"


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
        yield maximum or service.get("spec", "template"), "max-scale is not set: pods have no limit; set it"


@rule("PL461")
def initial_scale(service: Part, _: LintContext) -> Hits:
    scale = annotation(service, "initial-scale")
    if scale and scale.integer(1) == 0:
        message = "initial-scale 0 needs allow-zero-initial-scale in config-autoscaler; write 1"
        yield scale, message
