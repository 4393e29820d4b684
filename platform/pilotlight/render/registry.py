"""Tables of templates and their conditions. To add an object: a template, and one line in a table."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

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
    TemplateEntry("keda/headless-service.yaml.j2", frozenset({"stateful"})),
    TemplateEntry("keda/leaderworkerset.yaml.j2", frozenset({"multi-node"}), lambda work: work["cluster"] != "ray"),
    TemplateEntry("keda/raycluster.yaml.j2", frozenset({"multi-node"}), each="clusters"),
    TemplateEntry("keda/service.yaml.j2", PLAIN),
    TemplateEntry("keda/networkpolicy.yaml.j2", frozenset({"raw"})),
    TemplateEntry("keda/poddisruptionbudget.yaml.j2", PLAIN, lambda work: work["disruption"]),
    TemplateEntry("keda/horizontalpodautoscaler.yaml.j2", PLAIN, lambda work: work["scaling"]["scaler"] == "hpa"),
    TemplateEntry("keda/scaledobject.yaml.j2", PLAIN, lambda work: work["scaling"]["scaler"] == "keda"),
    TemplateEntry("keda/triggerauthentication.yaml.j2", PLAIN, each="authentications"),
    TemplateEntry("keda/interceptorroute.yaml.j2", PLAIN, lambda work: work["interceptor"]),
    TemplateEntry("keda/servicemonitor.yaml.j2", PLAIN, lambda work: work["monitored"]),
)

SERVICE_OBJECTS: Final = (
    TemplateEntry("keda/serviceaccount.yaml.j2", when=lambda service: service["serviceAccount"]["create"]),
    TemplateEntry("keda/address.yaml.j2", when=lambda service: service["address"]),
    TemplateEntry("keda/httproute.yaml.j2", when=lambda service: service["route"]),
    TemplateEntry("keda/referencegrant.yaml.j2", when=lambda service: service["route"] and service["route"]["grant"]),
    TemplateEntry("keda/prometheusrule.yaml.j2", when=lambda service: service["monitoring"]["rules"]),
)
