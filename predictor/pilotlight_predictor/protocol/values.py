"""Tensors as JSON numbers and strings, flat or nested.

Decoding is typed and happens in C: `[1, "a"]` for an FP32 input fails with the place of the string. The text of a
tensor is kept as it came (`msgspec.Raw`) until its datatype is known.
"""

import re
import warnings
from functools import cache
from math import prod
from typing import Any, Final, Literal

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
)

MAX_DEPTH: Final = 100
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64", "BF16"})
_ELEMENT: Final[dict[str, type]] = {"BOOL": bool, "BYTES": str, **dict.fromkeys(_FLOATS, float)}
_OPENING: Final = b" \t\r\n["
_PLAIN: Final = {name: dtype for name, dtype in NUMPY_TYPES.items() if name not in {"BF16", "BYTES"}}
# 1e39 is no FP32. As an error the warning costs nothing where there is none; np.errstate would, in each request.
warnings.filterwarnings("error", "overflow encountered in cast", RuntimeWarning, re.escape(__name__))
_NONFINITE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?Infinity|NaN)')


@cache
def _decoder(datatype: str, depth: int, nonfinite: bool = False) -> msgspec.json.Decoder[Any]:
    kind: Any = _ELEMENT.get(datatype, int)
    if nonfinite:
        kind = float | Literal["NaN", "Infinity", "-Infinity"]
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def decode_values(index: int, datatype: str, shape: Shape, text: msgspec.Raw) -> Tensor:
    """`text` is the JSON of the field `data` of the input at `index`."""
    dtype = _PLAIN.get(datatype)
    try:
        # Most requests are flat numbers that fit: one typed pass in C, and straight into an array.
        values = _decoder(datatype, 1).decode(text)
        array = np.array(values, dtype) if dtype is not None else _array(f"inputs[{index}]", datatype, values)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RuntimeWarning):
        array = _decode_any(f"inputs[{index}]", datatype, memoryview(text))
    if array.size != prod(shape):
        raise BadRequest(f"inputs[{index}].data has {array.size} elements, shape {list(shape)} takes {prod(shape)}")
    try:
        return Tensor(datatype, array.reshape(shape))
    except ValueError:  # numpy multiplies the other dimensions of a tensor that has none of its elements
        raise BadRequest(f"inputs[{index}].shape = {list(shape)} is too large, though it has no elements") from None


def _decode_any(where: str, datatype: str, text: memoryview) -> Array:
    return _array(where, datatype, _parse(where, datatype, text))


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
            return _with_nonfinite(where, depth, text, error)
        raise BadRequest(f"{where}.data: {explain(error)} for datatype {datatype}") from None
    except UnicodeDecodeError:
        raise BadRequest(f"{where}.data has text that is not UTF-8; send such bytes as a binary tensor") from None


def _depth(text: memoryview) -> int:
    depth = 0
    for byte in text[: 4 * MAX_DEPTH]:
        if byte == 0x5B:
            depth += 1
        elif byte not in _OPENING:
            break
    return depth


def _with_nonfinite(where: str, depth: int, text: memoryview, error: msgspec.DecodeError) -> Any:
    """numpy reads the names of these values as they are."""
    try:
        return _decoder("", depth, True).decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequest(f"{where}.data: {explain(error)}") from None


def quote_nonfinite(text: bytes) -> bytes | None:
    """NaN and Infinity, for which JSON has no word though clients write them, as strings; None: there are none."""
    if b"NaN" not in text and b"Infinity" not in text:
        return None
    quoted = _NONFINITE.sub(lambda found: b'"%b"' % found[1] if found[1] else found[0], text)
    return quoted if quoted != text else None


def _array(where: str, datatype: str, values: Any) -> Array:
    if datatype == "BYTES":
        return _bytes_array(values)
    dtype = NUMPY_TYPES["FP32" if datatype == "BF16" else datatype]
    try:
        array = np.array(values, dtype)
    except (OverflowError, RuntimeWarning):
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
