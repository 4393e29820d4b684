"""What an API server refuses in a pod though each of its fields is right. Asked last, of the template as it is applied.

A document and a runtime are each read and checked alone; what they do not share shows only when they are joined.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pilotlight import quantities
from pilotlight.plan.ledger import Ledger
from pilotlight.plan.subject import Subject
from pilotlight.pod_flags import PROBES

Json = Any


def check_pod(subject: Subject, spec: Mapping[str, Json], group: str, ledger: Ledger) -> None:
    """`group` is `worker` for the workers of a multi-node component, else empty."""
    prefix = f"{group}." if group else ""
    field = "runner" if subject.service.group == "ome" else "model"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for name, asked, limit in _overcommitted(container):
            message = f"requests {asked} of {name} and limits it to {limit}; devices are not shared, write one number"
            ledger.error("PL362", subject.path(f"{prefix}{field}.resources"), message)
        for name in _without_volume(spec, container):
            message = f"{name} is mounted and no volume of the pod; add it to {subject.path(f'{prefix}volumes')}"
            ledger.error("PL363", subject.path(f"{prefix}{field}.volumeMounts"), message)
        for probe in _without_port(container):
            message = f"{probe} of {container['name']} names no port, and only the main container's is known; add it"
            ledger.error("PL366", subject.path(f"{prefix}containers"), message)


def _overcommitted(container: Mapping[str, Json]) -> Iterator[tuple[str, Json, Json]]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    for name, asked in (resources.get("requests") or {}).items():
        if quantities.is_gpu(name) and quantities.number(asked) != quantities.number(limits.get(name)):
            yield name, asked, limits.get(name)


def _without_port(container: Mapping[str, Json]) -> Iterator[str]:
    """The main container's probes have theirs by now."""
    for probe in sorted(PROBES & container.keys()):
        for handler in ("httpGet", "tcpSocket"):
            asked = container[probe].get(handler)
            if asked is not None and "port" not in asked:
                yield f"{probe}.{handler}"


def _without_volume(spec: Mapping[str, Json], container: Mapping[str, Json]) -> list[str]:
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    return sorted({mount["name"] for mount in container.get("volumeMounts") or ()} - volumes)
