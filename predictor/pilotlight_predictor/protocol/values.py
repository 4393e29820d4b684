"""Tensors as JSON numbers and strings, flat or nested.

Decoding is typed and happens in C: `[1, "a"]` for an FP32 input fails with the place of the string. The text of a
tensor is kept as it came (`msgspec.Raw`) until its datatype is known.
"""

import json
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.tensors import (
    NUMPY_TYPES,
    Array,
    Shape,
    Tensor,
    bf16_from_float,
    bf16_to_float,
    element_count,
)

MAX_DEPTH: Final = 100
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
_ELEMENT: Final[dict[str, type]] = {"BOOL": bool, "BYTES": str, **dict.fromkeys(_FLOATS, float)}
_OPENING: Final = b" \t\r\n["


@cache
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = _ELEMENT.get(datatype, int)
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def decode_values(where: str, datatype: str, shape: Shape, text: memoryview) -> Tensor:
    """`text` is the JSON of the field `data`; `where` names the input in an error."""
    values = _parse(where, datatype, text)
    array = _array(where, datatype, values)
    count = element_count(shape)
    if array.size != count:
        raise BadRequest(f"{where}.data has {array.size} elements, shape {list(shape)} takes {count}")
    return Tensor(datatype, array.reshape(shape))


def _parse(where: str, datatype: str, text: memoryview) -> Any:
    depth = _depth(text)
    if depth > MAX_DEPTH:
        raise BadRequest(f"{where}.data is nested more than {MAX_DEPTH} deep")
    if depth == 0:
        raise BadRequest(f"{where}.data must be an array, flat or nested as its shape")
    try:
        return _decoder(datatype, depth).decode(text)
    except msgspec.DecodeError as error:
        if datatype in _FLOATS:
            return _with_nan(where, text, error)
        raise BadRequest(f"{where}.data: {explain(error)} for datatype {datatype}") from None


def _depth(text: memoryview) -> int:
    depth = 0
    for byte in text[: 4 * MAX_DEPTH]:
        if byte == 0x5B:
            depth += 1
        elif byte not in _OPENING:
            break
    return depth


def _with_nan(where: str, text: memoryview, error: msgspec.DecodeError) -> Any:
    """Some clients write NaN and Infinity, which JSON has no word for; only then is the slower parser asked."""
    raw = bytes(text)
    if b"NaN" not in raw and b"Infinity" not in raw:
        raise BadRequest(f"{where}.data: {explain(error)}") from None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise BadRequest(f"{where}.data: {explain(error)}") from None


def _array(where: str, datatype: str, values: Any) -> Array:
    if datatype == "BYTES":
        return _bytes_array(values)
    dtype = NUMPY_TYPES["FP32" if datatype == "BF16" else datatype]
    try:
        array = np.array(values, dtype)
    except OverflowError:
        raise BadRequest(f"{where}.data has a number that does not fit {datatype}") from None
    except (ValueError, TypeError):
        raise BadRequest(f"{where}.data is not a regular array of {datatype}: its rows differ in length") from None
    return bf16_from_float(array) if datatype == "BF16" else array


def _bytes_array(values: Any) -> Array:
    flat: list[Any] = values
    while flat and isinstance(flat[0], list):
        flat = [item for row in flat for item in row]
    array = np.empty(len(flat), dtype=object)
    array[:] = [item.encode() for item in flat]
    return array


def encode_values(name: str, tensor: Tensor) -> Any:
    """What the JSON encoder shall write for `data`: a flat array, or a list for strings."""
    datatype, array = tensor
    if datatype == "BYTES":
        return _strings(name, array)
    if datatype == "BF16":
        array = bf16_to_float(np.ascontiguousarray(array))
    return array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)


def _strings(name: str, array: Array) -> list[str]:
    try:
        return [item.decode() for item in array.ravel()]
    except UnicodeDecodeError:
        raise BadRequest(
            f"output '{name}' has bytes that are not UTF-8; ask for it with the parameter binary_data: true"
        ) from None


def explain(error: msgspec.DecodeError) -> str:
    """msgspec's sentence with its path made ours: `Expected `int`, got `str` - at `$.inputs[0].shape`."""
    text, _, path = str(error).partition(" - at `")
    text = text.replace("`", "")
    return f"{path.rstrip('`').removeprefix('$').removeprefix('.')}: {text}" if path.strip("$`.") else text
