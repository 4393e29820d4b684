"""Signature of an MLflow model: inputs, outputs and parameters, declared as MLServer's runtime does. Pure.

A column is a tensor [-1, 1] by its name, or `input-0` if it has none. Dates are ISO 8601 text; arrays, objects and maps
are JSON text.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight_predictor.core.tensors import NUMPY_TYPES, Array, Shape, TensorSpec, datatype_of
from pilotlight_predictor.errors import BadRequest, LoadFailed

_TYPES: Final = {
    "boolean": "BOOL", "integer": "INT32", "long": "INT64", "float": "FP32", "double": "FP64", "string": "BYTES",
    "binary": "BYTES", "datetime": "BYTES",
}  # fmt: skip
_COLUMN: Final[Shape] = (-1, 1)


class Field(NamedTuple):
    """One input or output: its tensor, its MLflow type (`tensor` for a tensor) and its own name, if it has one."""

    spec: TensorSpec
    kind: str
    name: str | None

    def to_column(self, array: Array) -> Any:
        """Return the values of a DataFrame's column. Raises BadRequest for text that is not of the column's type."""
        flat = array.reshape(-1)
        try:
            if self.spec.datatype != "BYTES":
                return flat.astype(NUMPY_TYPES[self.spec.datatype], copy=False)
            if self.kind == "binary":
                return flat
            text = [item.decode() if isinstance(item, bytes) else str(item) for item in flat]
            if self.kind == "datetime":
                return np.array(text, dtype="datetime64[ns]")
            return text if self.kind == "string" else [json.loads(item) for item in text]
        except ValueError as error:
            raise BadRequest(f"input '{self.spec.name}' has a value that is no {self.kind}: {error}") from None

    def to_array(self, values: Any) -> Array:
        """Return values of the model in the declared datatype and shape."""
        array = np.asarray(values)
        if array.ndim == 1 and self.spec.shape == _COLUMN:
            array = array[:, None]
        if self.spec.datatype != "BYTES":
            return array.astype(NUMPY_TYPES[self.spec.datatype], copy=False)
        return array if self.kind in _TYPES or self.kind == "tensor" else _as_json(array)


class Signature(NamedTuple):
    """Declared tensors and parameters; empty for a model that was saved without a signature."""

    inputs: tuple[Field, ...] = ()
    outputs: tuple[Field, ...] = ()
    params: Mapping[str, Any] = {}

    @property
    def by_columns(self) -> bool:
        """Whether the model takes a DataFrame, rather than tensors."""
        return bool(self.inputs) and self.inputs[0].kind != "tensor"


def read_signature(document: Mapping[str, Any]) -> Signature:
    """Return the signature of an MLmodel document. Raises LoadFailed if it cannot be read."""
    signature = document.get("signature") or {}
    try:
        params = json.loads(signature.get("params") or "[]")
        return Signature(
            _fields(signature.get("inputs"), "input"),
            _fields(signature.get("outputs"), "output"),
            {param["name"]: param.get("default") for param in params},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoadFailed(f"the signature in MLmodel cannot be read ({error!r}): save the model again") from None


def _fields(text: str | None, prefix: str) -> tuple[Field, ...]:
    return tuple(_field(item, f"{prefix}-{index}") for index, item in enumerate(json.loads(text or "[]")))


def _field(item: Mapping[str, Any], position: str) -> Field:
    name, kind = item.get("name"), item["type"]
    if kind == "tensor":
        dtype, shape = np.dtype(item["tensor-spec"]["dtype"]), tuple(item["tensor-spec"]["shape"])
        return Field(TensorSpec(name or position, datatype_of(np.empty(0, dtype)), shape), kind, name)
    optional = not item.get("required", True)
    return Field(TensorSpec(str(name or position), _TYPES.get(kind, "BYTES"), _COLUMN, optional), kind, name)


def _as_json(array: Array) -> Array:
    texts = np.empty(array.size, dtype=object)
    texts[:] = [json.dumps(item, default=str) for item in array.ravel()]
    return texts.reshape(array.shape)
