"""Sizes with units: bytes of a quantity, parameter count of a model, bytes of its weights."""

import re
from typing import Final

from pilotlight import quantities

_SCALE: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_BYTES_PER_PARAMETER: Final = {
    "fp32": 4.0, "float32": 4.0, "fp8": 1.0, "fbgemm_fp8": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5, "fp4": 0.5,
}  # fmt: skip


def parameter_count(size: str) -> float | None:
    """Return the parameter count of `70B`, `1.5T` or `560M`; None if malformed."""
    match = _SIZE.fullmatch(size.strip())
    return float(match[1]) * _SCALE.get(match[2].upper(), 1.0) if match else None


def quantity_value(text: str) -> float | None:
    """Return a Kubernetes quantity (`16Gi`, `500m`, `1.5e9`) as a number; None if malformed. `K` is read as `k`."""
    value = quantities.parse_quantity(text[:-1] + "k" if text.endswith("K") else text)
    return None if value is None or value < 0 else float(value)


def byte_count(text: str) -> int | None:
    """Return the bytes of a Kubernetes quantity; None if malformed."""
    value = quantity_value(text)
    return None if value is None else int(value)


def weights_size(parameter_size: str, quantization: str, dtype: str = "") -> tuple[int, str]:
    """Return the bytes of the weights and how they were computed: `70B` in bf16 is 140 GB, in int4 35 GB."""
    count = parameter_count(parameter_size) if parameter_size else None
    if count is None:
        return 0, ""
    stored = quantization or dtype or "bf16"
    each = _BYTES_PER_PARAMETER.get(stored.lower(), 2.0)
    size = int(count * each)
    return size, f"{size / 1e9:.3g} GB: {parameter_size} parameters of {each:g} bytes ({stored})"
