"""Free resources of nodes, to explain an unschedulable pod. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pilotlight.quantities import mebibytes, quantity_or_zero

Json = Any
Document = Mapping[str, Json]
_SHORT: Final = re.compile(r"Insufficient ([\w./-]+?)[.,]?(?:\s|$)")


def insufficient_resources(message: str) -> list[str]:
    """Return the resources of a scheduler message `0/3 nodes are available: 3 Insufficient nvidia.com/gpu.`"""
    return list(dict.fromkeys(_SHORT.findall(message)))


def too_large(pod: Document, resource: str, nodes: Sequence[Document]) -> bool:
    """Whether the request exceeds every node's capacity; False without known nodes."""
    return bool(nodes) and all(
        requested(pod, resource) > quantity_or_zero(_allocatable(node, resource)) for node in nodes
    )


def describe_shortage(pod: Document, resource: str, nodes: Sequence[Document], pods: Iterable[Document]) -> str:
    """Return a phrase such as `asks for 1 nvidia.com/gpu; no node has any`."""
    wanted = requested(pod, resource)
    asks = f"asks for {_amount(resource, wanted)} {resource}"
    if not nodes:
        return asks
    free = {str(node["metadata"]["name"]): quantity_or_zero(_allocatable(node, resource)) for node in nodes}
    if not any(free.values()):
        return f"{asks}; no node has any"
    for other in pods:
        where = str((other.get("spec") or {}).get("nodeName") or "")
        if where in free and (other.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            free[where] -= requested(other, resource)
    node, most = max(free.items(), key=lambda each: each[1])
    return f"{asks}; at most {_amount(resource, max(most, Decimal(0)))} is free, on {node}"


def requested(pod: Document, resource: str) -> Decimal:
    """Return the pod's request: the sum of its containers, or that of its largest init container."""
    spec = pod.get("spec") or {}
    running = sum((_container_request(each, resource) for each in spec.get("containers") or ()), Decimal(0))
    return max([running, *(_container_request(each, resource) for each in spec.get("initContainers") or ())])


def _container_request(container: Document, resource: str) -> Decimal:
    resources = container.get("resources") or {}
    return quantity_or_zero((resources.get("requests") or resources.get("limits") or {}).get(resource, "0"))


def _allocatable(node: Document, resource: str) -> str:
    return str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))


def _amount(resource: str, value: Decimal) -> str:
    if resource in ("memory", "ephemeral-storage"):
        return mebibytes(int(value))
    return f"{value.normalize():f}"
