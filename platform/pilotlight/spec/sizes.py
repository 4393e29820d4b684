"""Amounts with units: bytes of a quantity, parameters of a model, bytes of its weights. Pure arithmetic."""

import re
from typing import Final

from pilotlight import quantities

_SCALE: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_BYTES_PER_PARAMETER: Final = {
    "fp32": 4.0, "float32": 4.0, "fp8": 1.0, "fbgemm_fp8": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5, "fp4": 0.5,
}  # fmt: skip


def parameters(size: str) -> float | None:
    """How many parameters `70B`, `1.5T` or `560M` means; None where it cannot be read."""
    found = _SIZE.fullmatch(size.strip())
    return float(found[1]) * _SCALE.get(found[2].upper(), 1.0) if found else None


def amount(text: str) -> float | None:
    """A Kubernetes quantity as a number (`16Gi`, `500m`, `1.5e9`); None where it is none. `K` is taken for `k`."""
    found = quantities.quantity(text[:-1] + "k" if text.endswith("K") else text)
    return None if found is None or found < 0 else float(found)


def quantity(text: str) -> int | None:
    """Bytes of a Kubernetes quantity; None where it is none."""
    found = amount(text)
    return None if found is None else int(found)


def size_of(parameter_size: str, quantization: str, dtype: str = "") -> tuple[int, str]:
    """Bytes of the weights and how they were reckoned: `70B` in bf16 is 140 GB, in int4 35 GB."""
    count = parameters(parameter_size) if parameter_size else None
    if count is None:
        return 0, ""
    stored = quantization or dtype or "bf16"
    each = _BYTES_PER_PARAMETER.get(stored.lower(), 2.0)
    size = int(count * each)
    return size, f"{size / 1e9:.3g} GB: {parameter_size} parameters of {each:g} bytes ({stored})"
