"""Values of V1: nested JSON without type or shape ↔ tensors.

The shape is that of the nesting, the datatype the model's. Bytes that are not UTF-8 are sent as {"b64": "…"}.
"""

import struct
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from itertools import chain
from math import nan
from typing import Any, Final

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocol.values import pack_values
from pilotlight_predictor.tensors import Array, Tensor, bf16_to_float

MAX_DIMS: Final = 64  # numpy's own limit
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
_NAMED: Final = {"NaN": nan, "Infinity": float("inf"), "-Infinity": float("-inf")}
_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def is_b64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def to_tensor(where: str, datatype: str, values: Any) -> Tensor:
    """Decode nested values; `where` names the field in errors, as in `instances`."""
    shape, flat = _flattened(where, values)
    elements = _elements(where, datatype, flat)
    try:
        return Tensor(datatype, pack_values(where, datatype, shape, elements))
    except (OverflowError, struct.error):
        raise BadRequest(f"{where} has a number that does not fit {datatype}") from None


def _flattened(where: str, values: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape, from the nesting of the first elements, and all elements in a flat list."""
    shape: list[int] = []
    level = [values]
    while level and isinstance(level[0], list):
        if len(shape) == MAX_DIMS:
            raise BadRequest(f"{where} is nested more than {MAX_DIMS} deep")
        if not all(isinstance(item, list) for item in level):
            raise BadRequest(f"{where} is not a regular array: values stand beside lists")
        if len(set(map(len, level))) > 1:
            raise BadRequest(f"{where} is not a regular array: its rows differ in length")
        shape.append(len(level[0]))
        level = list(chain.from_iterable(level))
    return tuple(shape), level


def _elements(where: str, datatype: str, flat: list[Any]) -> list[Any]:
    element = _element_of(datatype)
    try:
        return list(map(element, flat))
    except (KeyError, TypeError, UnicodeEncodeError):
        wrong = next(value for value in flat if _fails(element, value))
        raise BadRequest(f"{where} has {_quoted(wrong)}, must be {_expected(datatype)} for {datatype}") from None
    except (NotBase64, ValueError):
        raise BadRequest(f"{where} has a b64 that is not base64") from None


def _element_of(datatype: str) -> Callable[[Any], Any]:
    if datatype == "BYTES":
        return _text
    if datatype == "BOOL":
        return _boolean
    return _float if datatype in _FLOATS else _integer


def _float(value: Any) -> float:
    """Convert to float; KServe's client writes null for NaN."""
    if type(value) is float or type(value) is int:
        return value
    if value is None:
        return nan
    if type(value) is str:
        return _NAMED[value]
    raise TypeError


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _text(value: Any) -> "str | _Bytes":
    if type(value) is str:
        value.encode()
        return value
    if is_b64(value) and type(value["b64"]) is str:
        return _Bytes(b64decode(value["b64"], validate=True))
    raise TypeError


class _Bytes(bytes):
    """Decoded b64 with the interface of str: `pack_values` calls encode() on each item."""

    def encode(self) -> bytes:
        return bytes(self)


def _fails(element: Callable[[Any], Any], value: Any) -> bool:
    try:
        element(value)
    except (KeyError, TypeError, ValueError):
        return True
    return False


def _quoted(value: Any) -> str:
    return f"{value!r:.50}".encode("ascii", "backslashreplace").decode() if not isinstance(value, dict) else "an object"


def _expected(datatype: str) -> str:
    if datatype == "BYTES":
        return 'text or {"b64": "…"}'
    return {"BOOL": "true or false"}.get(datatype, "a number" if datatype in _FLOATS else "an integer")


def to_json(tensor: Tensor) -> Any:
    """Return the value for the JSON encoder: an array, or nested lists where NaN or infinities are written by name."""
    datatype, array = tensor
    if datatype == "BYTES":
        return _nested(array, _text_or_b64)
    if datatype == "BF16":
        array = bf16_to_float(np.ascontiguousarray(array))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _nested(array.astype(object), lambda value: _NAMES.get(str(value), value))
    return np.ascontiguousarray(array) if array.ndim else array.item()


def _nested(array: Array, write: Callable[[Any], Any]) -> Any:
    out = np.empty(array.size, dtype=object)
    out[:] = [write(item) for item in array.ravel()]
    return out.reshape(array.shape).tolist()


def _text_or_b64(item: bytes) -> Any:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(item).decode()}
