"""Which template makes which object, and when. To add an object: a template, and one line in one of these tables."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Json = Any
Values = Mapping[str, Json]

ALL: Final = frozenset({"serverless", "raw", "multi-node", "stateful"})
PLAIN: Final = frozenset({"raw", "multi-node", "stateful"})


def _always(_: Values) -> bool:
    return True


class Row(NamedTuple):
    """`when` sees the values of the workload or service; `each` names a list among them: one object per item."""

    template: str
    modes: frozenset[str] = ALL
    when: Callable[[Values], Json] = _always
    each: str = ""


WORKLOAD_OBJECTS: Final = (
    Row("knative/service.yaml.j2", frozenset({"serverless"})),
    Row("knative/podmonitor.yaml.j2", frozenset({"serverless"}), lambda work: work["monitored"]),
    Row("keda/deployment.yaml.j2", frozenset({"raw"})),
    Row("keda/statefulset.yaml.j2", frozenset({"stateful"})),
    Row("keda/headless-service.yaml.j2", frozenset({"stateful"})),
    Row("keda/leaderworkerset.yaml.j2", frozenset({"multi-node"}), lambda work: work["cluster"] != "ray"),
    Row("keda/raycluster.yaml.j2", frozenset({"multi-node"}), each="clusters"),
    Row("keda/service.yaml.j2", PLAIN),
    Row("keda/networkpolicy.yaml.j2", frozenset({"raw"})),
    Row("keda/poddisruptionbudget.yaml.j2", PLAIN, lambda work: work["disruption"]),
    Row("keda/horizontalpodautoscaler.yaml.j2", PLAIN, lambda work: work["scaling"]["scaler"] == "hpa"),
    Row("keda/scaledobject.yaml.j2", PLAIN, lambda work: work["scaling"]["scaler"] == "keda"),
    Row("keda/triggerauthentication.yaml.j2", PLAIN, each="authentications"),
    Row("keda/interceptorroute.yaml.j2", PLAIN, lambda work: work["interceptor"]),
    Row("keda/servicemonitor.yaml.j2", PLAIN, lambda work: work["monitored"]),
)

SERVICE_OBJECTS: Final = (
    Row("keda/serviceaccount.yaml.j2", when=lambda service: service["serviceAccount"]["create"]),
    Row("keda/address.yaml.j2", when=lambda service: service["address"]),
    Row("keda/httproute.yaml.j2", when=lambda service: service["route"]),
    Row("keda/referencegrant.yaml.j2", when=lambda service: service["route"] and service["route"]["grant"]),
    Row("keda/prometheusrule.yaml.j2", when=lambda service: service["monitoring"]["rules"]),
)
