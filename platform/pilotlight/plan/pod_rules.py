"""Checks of the final pod template for combinations that the API server rejects.

Document and runtime are each validated alone; these conflicts appear only after merging.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pilotlight import quantities
from pilotlight.plan.ledger import DecisionLog
from pilotlight.plan.subject import PlanContext
from pilotlight.pod_flags import PROBE_FIELDS

Json = Any


def check_pod(context: PlanContext, spec: Mapping[str, Json], group: str, log: DecisionLog) -> None:
    """Report conflicts of a pod spec. `group` is `worker` for workers of a multi-node component, else empty."""
    prefix = f"{group}." if group else ""
    field = "runner" if context.service.group == "ome" else "model"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for name, request, limit in _overcommitted(container):
            message = f"requests {request} of {name} and limits it to {limit}; devices are not shared, write one number"
            log.error("PL362", context.path(f"{prefix}{field}.resources"), message)
        for name in _without_volume(spec, container):
            message = f"{name} is mounted and no volume of the pod; add it to {context.path(f'{prefix}volumes')}"
            log.error("PL363", context.path(f"{prefix}{field}.volumeMounts"), message)
        for probe in _without_port(container):
            message = f"{probe} of {container['name']} names no port, and only the main container's is known; add it"
            log.error("PL366", context.path(f"{prefix}containers"), message)


def _overcommitted(container: Mapping[str, Json]) -> Iterator[tuple[str, Json, Json]]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    for name, request in (resources.get("requests") or {}).items():
        if quantities.is_gpu(name) and quantities.quantity_or_zero(request) != quantities.quantity_or_zero(
            limits.get(name)
        ):
            yield name, request, limits.get(name)


def _without_port(container: Mapping[str, Json]) -> Iterator[str]:
    """Yield probes without a port; those of the main container have been given one."""
    for probe in sorted(PROBE_FIELDS & container.keys()):
        for handler in ("httpGet", "tcpSocket"):
            action = container[probe].get(handler)
            if action is not None and "port" not in action:
                yield f"{probe}.{handler}"


def _without_volume(spec: Mapping[str, Json], container: Mapping[str, Json]) -> list[str]:
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    return sorted({mount["name"] for mount in container.get("volumeMounts") or ()} - volumes)
