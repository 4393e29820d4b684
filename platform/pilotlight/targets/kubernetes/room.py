"""How much of a resource the nodes have left, for a pod that does not fit anywhere. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pilotlight.quantities import mebibytes, number

Json = Any
Document = Mapping[str, Json]
_SHORT: Final = re.compile(r"Insufficient ([\w./-]+?)[.,]?(?:\s|$)")


def short_of(message: str) -> list[str]:
    """Resources that the scheduler found too little of: `0/3 nodes are available: 3 Insufficient nvidia.com/gpu.`"""
    return list(dict.fromkeys(_SHORT.findall(message)))


def too_large(pod: Document, resource: str, nodes: Sequence[Document]) -> bool:
    """Whether no node could take it, were it empty. Nothing is known without nodes."""
    return bool(nodes) and all(requested(pod, resource) > number(_allocatable(node, resource)) for node in nodes)


def told(pod: Document, resource: str, nodes: Sequence[Document], pods: Iterable[Document]) -> str:
    """`asks for 1 nvidia.com/gpu; no node has any`."""
    wanted = requested(pod, resource)
    asks = f"asks for {_amount(resource, wanted)} {resource}"
    if not nodes:
        return asks
    free = {str(node["metadata"]["name"]): number(_allocatable(node, resource)) for node in nodes}
    if not any(free.values()):
        return f"{asks}; no node has any"
    for other in pods:
        where = str((other.get("spec") or {}).get("nodeName") or "")
        if where in free and (other.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            free[where] -= requested(other, resource)
    node, most = max(free.items(), key=lambda each: each[1])
    return f"{asks}; at most {_amount(resource, max(most, Decimal(0)))} is free, on {node}"


def requested(pod: Document, resource: str) -> Decimal:
    """By all its containers; one that starts before the others asks for it alone."""
    spec = pod.get("spec") or {}
    running = sum((_asked(each, resource) for each in spec.get("containers") or ()), Decimal(0))
    return max([running, *(_asked(each, resource) for each in spec.get("initContainers") or ())])


def _asked(container: Document, resource: str) -> Decimal:
    resources = container.get("resources") or {}
    return number((resources.get("requests") or resources.get("limits") or {}).get(resource, "0"))


def _allocatable(node: Document, resource: str) -> str:
    return str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))


def _amount(resource: str, value: Decimal) -> str:
    if resource in ("memory", "ephemeral-storage"):
        return mebibytes(int(value))
    return f"{value.normalize():f}"
