"""Entry workloads of a service: which ones receive its requests, with which weight. Pure; part of interpret.py."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.targets.local.model import WorkloadSpec
from pilotlight.targets.local.objects import Objects, at

Json = Any
Entry = tuple[tuple[str, int], ...]

# A component in front of another one comes first; roles not listed never receive requests from outside.
ORDER: Final = ("router", "transformer", "engine", "predictor")


def entry_of(
    service: str, objects: Objects, workloads: Sequence[WorkloadSpec], overrides: Mapping[str, Mapping[str, Json]]
) -> Entry:
    """Return the entry by the HTTPRoute, else by the Service with the service's name, else by role."""
    entry = _routed(objects, {workload.name for workload in workloads}) or _addressed(service, objects)
    if not entry and workloads:
        entry = ((_first(workloads).name, 100),)
    return _apply_overrides(entry, workloads, overrides)


def _routed(objects: Objects, known: set[str]) -> Entry:
    """Return the backends of HTTPRoutes that are workloads; one to a cluster's ingress gateway names none."""
    backends = [
        (str(backend.get("name")), int(backend.get("weight", 1)))
        for route in objects.of_kind("HTTPRoute")
        for rule in at(route, "spec", "rules") or ()
        for backend in rule.get("backendRefs") or ()
    ]
    return tuple(backend for backend in backends if backend[0] in known)


def _addressed(service: str, objects: Objects) -> Entry:
    address = objects.named("Service", names.entry_service(service))
    workload = at(address, "spec", "selector", names.LABEL_WORKLOAD)
    return ((str(workload), 100),) if workload else ()


def _first(workloads: Sequence[WorkloadSpec]) -> WorkloadSpec:

    def rank(workload: WorkloadSpec) -> tuple[int, int]:
        role = ORDER.index(workload.role) if workload.role in ORDER else len(ORDER)
        return role, len(workload.name)  # a canary has a longer name than its stable workload

    return min(workloads, key=rank)


def _apply_overrides(
    entry: Entry, workloads: Sequence[WorkloadSpec], overrides: Mapping[str, Mapping[str, Json]]
) -> Entry:
    """Apply shares set by `traffic` between two Deployments; `latest` is the canary, which has the longer name."""
    shares = (overrides.get(entry[0][0]) or {}).get("traffic") if len(entry) > 1 else None
    if not shares:
        return entry
    workload_of = {workload.revision.name: workload.name for workload in workloads if workload.name in dict(entry)}
    last = max((name for name, _ in entry), key=len)
    weights = {workload_of.get(str(share["revision"]), last): int(share["percent"]) for share in shares}
    return tuple((name, weights.get(name, 0)) for name, _ in entry)
