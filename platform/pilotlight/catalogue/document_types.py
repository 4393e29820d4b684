"""Types of the catalogue's documents (runtimes of both API groups, models and accelerator classes of OME) and sizes.

`runtimes`, `models` and `catalogue` read nodes against them; CRD schemas are generated from the same records.
"""

import re
from pathlib import Path
from typing import Final

from pilotlight.k8s import quantities
from pilotlight.spec.field_tables import OME, FieldTable
from pilotlight.spec.service import Group

TYPES: Final = FieldTable(Path(__file__).with_suffix(".yaml"), OME)
RUNTIME_VERSIONS: Final[dict[str, Group]] = {"ome.io/v1beta1": "ome", "serving.kserve.io/v1alpha1": "kserve"}
RUNTIME_KINDS: Final = ("ServingRuntime", "ClusterServingRuntime")
MODEL_KINDS: Final = ("BaseModel", "ClusterBaseModel")
ACCELERATOR_KIND: Final = "AcceleratorClass"
WEIGHTS_KIND: Final = "FineTunedWeight"
CACHE_KINDS: Final = ("LocalModelCache", "LocalModelNamespaceCache")
OME_VERSION: Final = "ome.io/v1beta1"
KSERVE_VERSION: Final = "serving.kserve.io/v1alpha1"
_SCALE: Final = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
BYTES_PER_PARAMETER: Final = {
    "fp32": 4.0, "float32": 4.0, "fp8": 1.0, "fbgemm_fp8": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5, "fp4": 0.5,
    "awq": 0.5, "awq_marlin": 0.5, "gptq": 0.5, "gptq_marlin": 0.5, "bitsandbytes": 0.5, "nvfp4": 0.5,
}  # fmt: skip
MAX_PARAMETERS: Final = 1e18


def parameter_count(size: str) -> float | None:
    """Return the parameter count of `70B`, `1.5T` or `560M`; None if malformed."""
    match = _SIZE.fullmatch(size.strip())
    count = float(match[1]) * _SCALE.get(match[2].upper(), 1.0) if match else None
    return count if count is not None and count < MAX_PARAMETERS else None


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
    each = BYTES_PER_PARAMETER.get(stored.lower(), 2.0)
    size = int(count * each)
    return size, f"{size / 1e9:.3g} GB: {parameter_size} parameters of {each:g} bytes ({stored})"
