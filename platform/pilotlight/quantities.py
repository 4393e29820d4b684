"""Amounts as Kubernetes spells them: quantities to numbers and back, durations to seconds, GPUs of a container."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
_SUFFIXES: Final[dict[str, Decimal | int]] = {
    "": 1, "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"),
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)([numkKMGTPE]i?)?")
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def quantity(text: str) -> Decimal | None:
    """`500m` is 0.5, `2Gi` is 2147483648, `2e9` is what it says; None where it is no quantity."""
    matched = _QUANTITY.fullmatch(text.strip())
    if not matched or (matched[2] or "") not in _SUFFIXES:
        return None
    return Decimal(matched[1]) * _SUFFIXES[matched[2] or ""]


def number(written: object) -> Decimal:
    """The same where the reader has refused what is no quantity; here it counts as 0."""
    return quantity(str(written)) or Decimal(0)


def seconds(text: str) -> float | None:
    """`1m30s` as Go reads it, with a sign in front if need be; a bare 0 needs no unit; None where it is no duration."""
    sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if body == "0":
        return 0.0
    parts = _DURATION.findall(body)
    if not parts or "".join(amount + unit for amount, unit in parts) != body:
        return None
    return sign * sum(float(amount) * _SECONDS[unit] for amount, unit in parts)


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
