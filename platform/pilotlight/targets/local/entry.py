"""Which workloads receive a service's own requests, and with which weight. Pure; a part of interpret.py."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pilotlight import names
from pilotlight.targets.local.model import WorkloadSpec
from pilotlight.targets.local.objects import Objects, at

Json = Any
Entry = tuple[tuple[str, int], ...]

# A component in front of another one is asked first; roles that are missing here are never asked from outside.
ORDER: Final = ("router", "transformer", "engine", "predictor")


def entry_of(
    service: str, objects: Objects, workloads: Sequence[WorkloadSpec], overrides: Mapping[str, Mapping[str, Json]]
) -> Entry:
    """By the route, else by the Service that bears the service's name, else by role."""
    found = _routed(objects, {workload.name for workload in workloads}) or _addressed(service, objects)
    if not found and workloads:
        found = ((_first(workloads).name, 100),)
    return _by_hand(found, workloads, overrides)


def _routed(objects: Objects, known: set[str]) -> Entry:
    """A route that leads to a gateway of the cluster names no workload, and says nothing here."""
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
    """A canary has a word more in its name than the workload that it stands beside."""

    def rank(workload: WorkloadSpec) -> tuple[int, int]:
        place = ORDER.index(workload.role) if workload.role in ORDER else len(ORDER)
        return place, len(workload.name)

    return min(workloads, key=rank)


def _by_hand(found: Entry, workloads: Sequence[WorkloadSpec], overrides: Mapping[str, Mapping[str, Json]]) -> Entry:
    """Shares between two Deployments, set by `traffic`: `latest` is the canary, which has the longer name."""
    written = (overrides.get(found[0][0]) or {}).get("traffic") if len(found) > 1 else None
    if not written:
        return found
    sides = {workload.revision.name: workload.name for workload in workloads if workload.name in dict(found)}
    last = max((name for name, _ in found), key=len)
    weights = {sides.get(str(share["revision"]), last): int(share["percent"]) for share in written}
    return tuple((name, weights.get(name, 0)) for name, _ in found)
