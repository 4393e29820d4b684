"""Kubernetes quantities and durations as numbers, and GPUs of a container."""

import re
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any, Final

from pilotlight.k8s.names import ANNOTATION_GPU_MEMORY, ANNOTATION_GPU_PINNED, ANNOTATION_GPU_RESIDENCE, ANNOTATION_PARK

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
_SUFFIXES: Final[dict[str, Decimal | int]] = {
    "": 1, "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"),
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)([numkKMGTPE]i?)?")
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_quantity(text: str) -> Decimal | None:
    """Parse a quantity: `500m` is 0.5, `2Gi` is 2147483648; None if malformed, or beyond Kubernetes' 63 bits."""
    match = _QUANTITY.fullmatch(text.strip())
    if not match or (match[2] or "") not in _SUFFIXES:
        return None
    try:
        value = Decimal(match[1]) * _SUFFIXES[match[2] or ""]
    except ArithmeticError:
        return None
    return value if abs(value) < 2**63 else None


def quantity_or_zero(value: object) -> Decimal:
    """Parse a quantity that has been validated; a malformed one counts as 0."""
    return parse_quantity(str(value)) or Decimal(0)


def parse_duration(text: str) -> float | None:
    """Return the seconds of a Go duration such as `1m30s` or `-5s`; None if malformed. 0 needs no unit."""
    sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if body == "0":
        return 0.0
    parts = _DURATION.findall(body)
    if not parts or "".join(amount + unit for amount, unit in parts) != body:
        return None
    seconds = sign * sum(float(amount) * _SECONDS[unit] for amount, unit in parts)
    return seconds if isfinite(seconds) else None


def unsigned_duration(text: str) -> float | None:
    """Return the seconds of a duration without a sign, such as the timeout of an HTTPRoute; None if malformed."""
    return None if text.startswith(("+", "-")) else parse_duration(text)


def mebibytes(size: int) -> str:
    """Format bytes, rounded up to whole Mi or Gi: `3Gi`, `1536Mi`."""
    mebi = -(-size // 2**20)
    return f"{mebi // 1024}Gi" if mebi % 1024 == 0 else f"{mebi}Mi"


def gpu_sharing(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a pod shares its GPUs: bytes of each (0: as measured, None: all), and when it leaves them."""
    memory = annotations.get(ANNOTATION_GPU_MEMORY)
    return {
        "gpu_memory": None if memory is None else 0 if memory == "auto" else int(quantity_or_zero(memory)),
        "gpu_pinned": annotations.get(ANNOTATION_GPU_PINNED) == "true",
        "gpu_residence": unsigned_duration(str(annotations.get(ANNOTATION_GPU_RESIDENCE, ""))),
        "park": annotations.get(ANNOTATION_PARK) == "true",
    }


def is_gpu(resource: str) -> bool:
    """Return whether a resource is a GPU or a slice of one, such as `nvidia.com/mig-1g.10gb`."""
    return resource in GPU_RESOURCES or resource.startswith("nvidia.com/mig-")


def gpu_count(container: Mapping[str, Any]) -> int:
    """Return the GPUs of a container: of its limits, or of its requests without limits."""
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        counts = [int(quantity_or_zero(count)) for name, count in (resources.get(part) or {}).items() if is_gpu(name)]
        if sum(counts):
            return sum(counts)
    return 0
