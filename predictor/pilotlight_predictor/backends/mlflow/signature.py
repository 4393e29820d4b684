"""Signature of an MLflow model, declared as MLServer's runtime does, and the values of requests by it. Pure.

A column is a tensor [-1, 1] by its name, or `input-0` if it has none. Dates are ISO 8601 text; arrays, objects and maps
are JSON text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight.wire.messages import quoted
from pilotlight_predictor.core.requests import Inputs, Layout, LayoutKind, Outputs, OutputsWithParameters
from pilotlight_predictor.core.tensors import (
    NUMPY_TYPES,
    Array,
    JsonText,
    Shape,
    Tensor,
    TensorSpec,
    datatype_of,
    objects,
    tensor,
)
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
            raise BadRequest(f"input '{self.spec.name}' has a value that is not of type {self.kind}: {error}") from None

    def to_array(self, values: Any) -> Array:
        """Return values of the model in the declared datatype and shape."""
        array = np.asarray(values)
        if array.ndim == 1 and self.spec.shape == _COLUMN:
            array = array[:, None]
        if self.spec.datatype != "BYTES":
            return array.astype(NUMPY_TYPES[self.spec.datatype], copy=False)
        if self.kind in _TYPES or self.kind == "tensor":
            return array
        texts = [JsonText(json.dumps(item, default=_plain_value).encode()) for item in array.ravel()]
        return objects(texts, array.shape)


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


def _plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def by_field(inputs: Inputs, fields: Sequence[Field]) -> Inputs:
    """Return the inputs of the signature; one matrix of another name is taken for all columns. Raises BadRequest."""
    if not fields:
        return inputs
    known = {field.spec.name for field in fields}
    if len(inputs) == 1 and not known & inputs.keys():
        ((_, (datatype, array)),) = inputs.items()
        if fields[0].kind == "tensor" and len(fields) == 1:
            return {fields[0].spec.name: Tensor(datatype, array)}
        if fields[0].kind != "tensor" and array.ndim == 2 and array.shape[1] == len(fields):
            return {field.spec.name: Tensor(datatype, array[:, index]) for index, field in enumerate(fields)}
    takes = f"its inputs are {quoted(field.spec.name for field in fields)}"
    if unknown := [name for name in inputs if name not in known]:
        raise BadRequest(f"unexpected inference input '{unknown[0]}'; {takes}")
    if missing := [f.spec.name for f in fields if f.spec.name not in inputs and not f.spec.optional]:
        raise BadRequest(f"missing inputs: {quoted(missing)}; {takes}")
    return {field.spec.name: inputs[field.spec.name] for field in fields if field.spec.name in inputs}


def to_data(inputs: Inputs, fields: Sequence[Field]) -> Any:
    """Return what a python_function takes: a DataFrame of columns, an array for one tensor without a name, or a dict.

    Without a signature one input is an array, and several are columns.
    """
    if len(inputs) > 1 and not fields:
        fields = [Field(TensorSpec(n, t.datatype, ()), "string", n) for n, t in inputs.items()]
    if not fields or (len(fields) == 1 and fields[0].kind == "tensor" and fields[0].name is None):
        return _plain(next(iter(inputs.values())), fields[0].spec.datatype if fields else "")
    given = [(index, field) for index, field in enumerate(fields) if field.spec.name in inputs]
    if fields[0].kind == "tensor":
        return {field.name: _plain(inputs[field.spec.name], field.spec.datatype) for _, field in given}
    import pandas as pd

    columns = {
        field.name if field.name is not None else index: field.to_column(inputs[field.spec.name].array)
        for index, field in given
    }
    return pd.DataFrame(columns)


def to_outputs(result: Any, fields: Sequence[Field], kind: LayoutKind | None = None) -> Outputs:
    """Return the outputs of a DataFrame, Series, dict, array or list by the names of the signature.

    `kind`: what mlflow's python_function returns, if `result` is another backend's.
    """
    if hasattr(result, "toarray"):  # a sparse matrix
        result = result.toarray()
    layout = _layout(result, kind)
    if isinstance(result, list) and result and isinstance(result[0], Mapping):
        result = {name: [row.get(name) for row in result] for name in result[0]}
    if isinstance(result, Mapping) or hasattr(result, "columns"):
        named = {str(name): result[name] for name in result}
    elif len(fields) > 1 and np.ndim(result) == 2 and np.shape(result)[1] == len(fields):
        named = {field.spec.name: np.asarray(result)[:, index] for index, field in enumerate(fields)}
    else:
        named = {fields[0].spec.name if fields else "output-0": [result] if np.ndim(result) == 0 else result}
    if len(fields) == 1 and len(named) == 1:
        named = {fields[0].spec.name: next(iter(named.values()))}
    declared = {field.spec.name: field for field in fields}
    tensors = {
        name: tensor(declared[name].to_array(values) if name in declared else np.asarray(values))
        for name, values in named.items()
    }
    flat = frozenset(
        name for name, values in named.items() if np.ndim(values) == 1 or (kind and np.shape(values)[1:] == (1,))
    )
    return OutputsWithParameters(tensors, {}, layout._replace(flat=flat))


def _layout(result: Any, kind: LayoutKind | None) -> Layout:
    """Return how MLflow's scoring server would write a result (mlflow.utils.proto_json_utils._get_jsonable_obj)."""
    if hasattr(result, "columns"):
        return Layout("records", tuple(map(str, result.columns)))
    if hasattr(result, "to_frame"):  # a Series
        return Layout("records", (str(0 if result.name is None else result.name),))
    if isinstance(result, Mapping):
        return Layout(kind, tuple(result)) if kind else Layout("columns")
    return Layout("records" if isinstance(result, list) and result and isinstance(result[0], Mapping) else "values")


def _plain(value: Tensor, datatype: str) -> Array:
    """Return the array in the declared datatype, if there is one; text as str."""
    if value.datatype != "BYTES":
        return value.array.astype(NUMPY_TYPES[datatype], copy=False) if datatype else value.array
    return np.array([item.decode() for item in value.array.ravel()], dtype=object).reshape(value.array.shape)
