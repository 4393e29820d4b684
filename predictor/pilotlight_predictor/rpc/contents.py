"""Typed tensor contents (`fp32_contents`, `bytes_contents`, …) ↔ arrays. Pure.

FP16 and BF16 have no typed field and are sent as raw contents.
"""

from typing import Any, Final

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.rpc import wire
from pilotlight_predictor.rpc.wire import BYTES
from pilotlight_predictor.tensors import NUMPY_TYPES, Array, Shape, Tensor, element_count

FIELDS: Final = {
    "BOOL": (1, "bool_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), (2, "int_contents")),
    "INT64": (3, "int64_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), (4, "uint_contents")),
    "UINT64": (5, "uint64_contents"),
    "FP32": (6, "fp32_contents"),
    "FP64": (7, "fp64_contents"),
    "BYTES": (8, "bytes_contents"),
}
_NAMES: Final = dict(FIELDS.values())


def decode_contents(where: str, datatype: str, shape: Shape, data: memoryview) -> Tensor:
    """Decode an InferTensorContents; `where` names the input in errors."""
    if datatype not in FIELDS:
        raise BadRequest(f"{where}: {datatype} has no typed contents; send it in raw_input_contents")
    number, name = FIELDS[datatype]
    array = _concatenate(f"{where}.contents.{name}", datatype, _pieces(where, datatype, number, name, data))
    if array.size != element_count(shape):
        count = element_count(shape)
        raise BadRequest(f"{where}.contents.{name} has {array.size} elements, shape {list(shape)} takes {count}")
    try:
        return Tensor(datatype, array.reshape(shape))
    except ValueError:  # with a dimension of 0, numpy still checks the product of the others
        raise BadRequest(f"{where}: shape {list(shape)} is too large, though it has no elements") from None


def _pieces(where: str, datatype: str, number: int, name: str, data: memoryview) -> list[tuple[int, Any]]:
    """Return wire type and value of each occurrence of the field: numbers may be packed, unpacked, or both."""
    pieces = []
    for field, wire_type, value in wire.fields(data):
        if field == number:
            pieces.append((wire_type, value))
        elif field in _NAMES:
            raise BadRequest(f"{where} has {_NAMES[field]}, must have {name} for datatype {datatype}")
    return pieces


def _concatenate(where: str, datatype: str, pieces: list[tuple[int, Any]]) -> Array:
    if datatype == "BYTES":
        array: Array = np.empty(len(pieces), object)
        array[:] = [bytes(wire.payload(value, where)) for _, value in pieces]
        return array
    arrays = [_numbers(where, datatype, wire_type, value) for wire_type, value in pieces]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, NUMPY_TYPES[datatype])


def _numbers(where: str, datatype: str, wire_type: int, value: int | memoryview) -> Array:
    dtype = NUMPY_TYPES[datatype]
    if dtype.kind == "f":
        data = wire.payload(value, where)
        if len(data) % dtype.itemsize or wire_type == (wire.FIXED32 if datatype == "FP64" else wire.FIXED64):
            raise wire.malformed(f"{where} ends within a number")
        return np.frombuffer(data, dtype)
    if wire_type == BYTES:
        wide = wire.unpack_varints(wire.payload(value, where), where)
    else:
        wide = np.array([wire.number(value, where)], np.uint64)
    return _narrow(where, datatype, wide)


def _narrow(where: str, datatype: str, wide: Array) -> Array:
    dtype = NUMPY_TYPES[datatype]
    if datatype == "BOOL":
        return wide.astype(np.bool_)
    wide = wide.view(np.int64) if dtype.kind == "i" else wide
    narrow = wide.astype(dtype)
    if not np.array_equal(narrow, wide):
        raise BadRequest(f"{where} has a number that does not fit {datatype}")
    return narrow


def encode_contents(tensor: Tensor) -> bytes:
    """Encode an InferTensorContents; the datatype must be one of FIELDS."""
    datatype, array = tensor
    number, _ = FIELDS[datatype]
    if datatype == "BYTES":
        return b"".join(wire.delimited(number, item) for item in array.ravel())
    dtype = NUMPY_TYPES[datatype]
    flat = np.ascontiguousarray(array, dtype).reshape(-1)
    packed = flat.tobytes() if dtype.kind in "fb" else b"".join(map(wire.varint, flat.tolist()))
    return wire.delimited(number, packed) if packed else b""
