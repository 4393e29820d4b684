"""Second half of render: values of a service filled into the registry's templates, in apply order."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pilotlight.manifests import Manifest, in_apply_order
from pilotlight.plan.model import Plan
from pilotlight.render.registry import SERVICE_OBJECTS, WORKLOAD_OBJECTS
from pilotlight.render.templates import document, plain
from pilotlight.render.values import template_values

Json = Any

# The chart has templates for these modes; other workloads are passed to it as finished objects.
CHART_MODES: Final = frozenset({"serverless", "raw", "stateful"})


def render(plan: Plan) -> list[Manifest]:
    """Return all objects of the service."""
    return in_apply_order(objects_of(template_values(plan)))


def objects_of(values: Mapping[str, Json]) -> Iterator[Manifest]:
    """Yield the objects of a service's values, in the order of the tables."""
    yield from _service_objects(values)
    for workload in values["workloads"]:
        yield from _workload_objects(values, workload)
    yield from map(Manifest, values["objects"])


def values_of(plan: Plan) -> dict[str, Json]:
    """Return the plan as values of helm/inference-service, which renders the same objects as render()."""
    values = template_values(plan)
    finished = list(values["objects"])
    for workload in values["workloads"]:
        if workload["mode"] not in CHART_MODES:
            finished += [plain(manifest.document) for manifest in in_apply_order(_workload_objects(values, workload))]
    chosen = [workload for workload in values["workloads"] if workload["mode"] in CHART_MODES]
    return {**values, "workloads": chosen, "objects": finished}


def _service_objects(values: Mapping[str, Json]) -> Iterator[Manifest]:
    for entry in SERVICE_OBJECTS:
        if entry.when(values):
            yield Manifest(document(entry.template, {"service": values}))


def _workload_objects(values: Mapping[str, Json], workload: Mapping[str, Json]) -> Iterator[Manifest]:
    for entry in WORKLOAD_OBJECTS:
        if workload["mode"] in entry.modes and entry.when(workload):
            for item in workload[entry.each] if entry.each else (None,):
                yield Manifest(document(entry.template, {"service": values, "workload": workload, "item": item}))
