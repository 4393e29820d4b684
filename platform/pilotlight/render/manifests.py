"""Tables of templates with their conditions, filled with the values of a service: the second half of render.

To add an object: a template, and one line in a table.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pilotlight.k8s.manifest import Manifest, in_apply_order
from pilotlight.plan.types import Plan
from pilotlight.render.jinja_templates import document, plain
from pilotlight.render.template_values import template_values

Json = Any
Values = Mapping[str, Json]

ALL: Final = frozenset({"serverless", "raw", "multi-node", "stateful"})
PLAIN: Final = frozenset({"raw", "multi-node", "stateful"})


class TemplateEntry(NamedTuple):
    """One template. `when` takes the values of the workload or service; `each` names a list: one object per item."""

    template: str
    modes: frozenset[str] = ALL
    when: Callable[[Values], Json] = lambda _: True
    each: str = ""


WORKLOAD_OBJECTS: Final = (
    TemplateEntry("knative/service.yaml.j2", frozenset({"serverless"})),
    TemplateEntry("knative/podmonitor.yaml.j2", frozenset({"serverless"}), lambda work: work["monitored"]),
    TemplateEntry("keda/deployment.yaml.j2", frozenset({"raw"})),
    TemplateEntry("keda/statefulset.yaml.j2", frozenset({"stateful"})),
    TemplateEntry("keda/headless-service.yaml.j2", PLAIN, lambda work: work["headlessName"]),
    TemplateEntry("keda/leaderworkerset.yaml.j2", frozenset({"multi-node"}), lambda work: work["cluster"] != "ray"),
    TemplateEntry("keda/raycluster.yaml.j2", frozenset({"multi-node"}), each="clusters"),
    TemplateEntry("keda/service.yaml.j2", PLAIN),
    TemplateEntry(
        "keda/networkpolicy.yaml.j2", PLAIN, lambda work: work["mode"] == "raw" or "ingress" in work["network"]
    ),
    TemplateEntry("keda/poddisruptionbudget.yaml.j2", PLAIN, lambda work: work["disruption"]),
    TemplateEntry("keda/horizontalpodautoscaler.yaml.j2", PLAIN, lambda work: work["scaling"]["scaler"] == "hpa"),
    TemplateEntry("keda/scaledobject.yaml.j2", PLAIN, lambda work: work["scaling"]["scaler"] == "keda"),
    TemplateEntry("keda/triggerauthentication.yaml.j2", PLAIN, each="authentications"),
    TemplateEntry("keda/interceptorroute.yaml.j2", PLAIN, lambda work: work["interceptor"]),
    TemplateEntry("keda/servicemonitor.yaml.j2", PLAIN, lambda work: work["monitored"]),
)

SERVICE_OBJECTS: Final = (
    TemplateEntry("keda/serviceaccount.yaml.j2", when=lambda service: service["serviceAccount"]["create"]),
    TemplateEntry("keda/role.yaml.j2", when=lambda service: service.get("podReader")),
    TemplateEntry("keda/rolebinding.yaml.j2", when=lambda service: service.get("podReader")),
    TemplateEntry("keda/accesssecret.yaml.j2", when=lambda service: service.get("access")),
    TemplateEntry("keda/address.yaml.j2", when=lambda service: service["address"]),
    TemplateEntry("keda/httproute.yaml.j2", when=lambda service: service["route"]),
    TemplateEntry("knative/route.yaml.j2", when=lambda service: service.get("knativeRoute")),
    TemplateEntry("knative/domainmapping.yaml.j2", when=lambda service: service.get("mappedHost")),
    TemplateEntry("keda/referencegrant.yaml.j2", when=lambda service: service["route"] and service["route"]["grant"]),
    TemplateEntry("keda/prometheusrule.yaml.j2", when=lambda service: service["monitoring"]["rules"]),
)

# The chart has templates for these modes; other workloads are passed to it as finished objects.
CHART_MODES: Final = frozenset({"serverless", "raw", "stateful"})


def render(plan: Plan) -> list[Manifest]:
    return in_apply_order(objects_of(template_values(plan)))


def objects_of(values: Mapping[str, Json]) -> Iterator[Manifest]:
    """Yield the objects of a service's values, in the order of the tables."""
    for entry in SERVICE_OBJECTS:
        if entry.when(values):
            yield Manifest(document(entry.template, {"service": values}))
    for workload in values["workloads"]:
        yield from _workload_objects(values, workload)
    yield from map(Manifest, values["objects"])


def values_of(plan: Plan) -> dict[str, Json]:
    """Return the plan as values of helm/inference-service, which renders the same objects as render()."""
    values = template_values(plan)
    finished = list(values["objects"])
    further = [values.pop(key) for key in ("access", "podReader", "mappedHost", "knativeRoute")]
    if any(further):
        kinds = ("Secret", "Role", "RoleBinding", "DomainMapping", "Route")
        finished += [each.document for each in render(plan) if each.document["kind"] in kinds]
    for workload in values["workloads"]:
        if workload["mode"] not in CHART_MODES:
            finished += [plain(manifest.document) for manifest in in_apply_order(_workload_objects(values, workload))]
    chosen = [workload for workload in values["workloads"] if workload["mode"] in CHART_MODES]
    return {**values, "workloads": chosen, "objects": finished}


def _workload_objects(values: Mapping[str, Json], workload: Mapping[str, Json]) -> Iterator[Manifest]:
    for entry in WORKLOAD_OBJECTS:
        if workload["mode"] in entry.modes and entry.when(workload):
            for item in workload[entry.each] if entry.each else (None,):
                yield Manifest(document(entry.template, {"service": values, "workload": workload, "item": item}))
