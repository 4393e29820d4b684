"""Second half of render: the values of a service through the registry's templates, in the order of applying."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pilotlight.manifests import Manifest, in_order
from pilotlight.plan.model import Plan
from pilotlight.render.registry import SERVICE_OBJECTS, WORKLOAD_OBJECTS, Row
from pilotlight.render.templates import document, plain
from pilotlight.render.values import view

Json = Any

# The chart has templates of its own for these; workloads of other modes reach it as finished objects.
CHART_MODES: Final = frozenset({"serverless", "raw", "stateful"})


def render(plan: Plan) -> list[Manifest]:
    """Every object of the service, complete."""
    return in_order(objects_of(view(plan)))


def objects_of(values: Mapping[str, Json]) -> Iterator[Manifest]:
    """What the values of a service amount to, in the order of the tables."""
    yield from _service_objects(values)
    for workload in values["workloads"]:
        yield from _workload_objects(values, workload)
    yield from map(Manifest, values["objects"])


def values_of(plan: Plan) -> dict[str, Json]:
    """The resolved plan as values of helm/inference-service: rendered there, they give what render() gives."""
    values = view(plan)
    finished = list(values["objects"])
    for workload in values["workloads"]:
        if workload["mode"] not in CHART_MODES:
            finished += [plain(manifest.document) for manifest in in_order(_workload_objects(values, workload))]
    chosen = [workload for workload in values["workloads"] if workload["mode"] in CHART_MODES]
    return {**values, "workloads": chosen, "objects": finished}


def _service_objects(values: Mapping[str, Json]) -> Iterator[Manifest]:
    for row in SERVICE_OBJECTS:
        if row.when(values):
            yield Manifest(document(row.template, {"service": values}))


def _workload_objects(values: Mapping[str, Json], workload: Mapping[str, Json]) -> Iterator[Manifest]:
    for row in WORKLOAD_OBJECTS:
        if workload["mode"] in row.modes and row.when(workload):
            for item in _items(row, workload):
                yield Manifest(document(row.template, {"service": values, "workload": workload, "item": item}))


def _items(row: Row, workload: Mapping[str, Json]) -> Sequence[Json]:
    return workload[row.each] if row.each else (None,)
