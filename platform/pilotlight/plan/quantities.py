"""Kubernetes quantities as numbers: memory to bytes and back, GPUs of a container."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
_SUFFIXES: Final[dict[str, Decimal | int]] = {
    "": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")


def number(quantity: object) -> Decimal:
    """`500m` is 0.5, `2Gi` is 2147483648. The reader has refused what is no quantity; here it counts as 0."""
    matched = _QUANTITY.fullmatch(str(quantity).strip())
    if not matched or matched[2] not in _SUFFIXES:
        return Decimal(0)
    return Decimal(matched[1]) * _SUFFIXES[matched[2]]


def mebibytes(size: int) -> str:
    """Rounded up, in the largest unit that stays whole: `3Gi`, `1536Mi`."""
    mebi = -(-size // 2**20)
    return f"{mebi // 1024}Gi" if mebi % 1024 == 0 else f"{mebi}Mi"


def is_gpu(resource: str) -> bool:
    """Also slices such as `nvidia.com/mig-1g.10gb`."""
    return resource in GPU_RESOURCES or resource.startswith("nvidia.com/mig-")


def gpus(container: Mapping[str, Any]) -> int:
    """Devices that a container gets: its limits, or its requests where it has no limits."""
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        counts = [int(number(count)) for name, count in (resources.get(part) or {}).items() if is_gpu(name)]
        if sum(counts):
            return sum(counts)
    return 0
