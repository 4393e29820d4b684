"""Tensors as raw bytes, little-endian and row-major: the V2 binary extension and gRPC's raw contents.

Fixed-size types are decoded without a copy: the array is a read-only view of the request's own buffer.
"""

from struct import Struct

import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.tensors import NUMPY_TYPES, Array, Shape, Tensor, element_count

_LENGTH = Struct("<I")


def decode_raw(where: str, datatype: str, shape: Shape, data: Buffer) -> Tensor:
    """Decode raw bytes; `where` names the field in errors, as in `input 'x'`."""
    array = _decode_bytes(where, shape, data) if datatype == "BYTES" else _decode_numbers(where, datatype, shape, data)
    try:
        return Tensor(datatype, array.reshape(shape))
    except ValueError:  # with a dimension of 0, numpy still checks the product of the others
        raise BadRequest(f"{where}: shape {list(shape)} is too large, though it has no elements") from None


def _decode_numbers(where: str, datatype: str, shape: Shape, data: Buffer) -> Array:
    dtype = NUMPY_TYPES[datatype]
    expected = element_count(shape) * dtype.itemsize
    if len(data) != expected:
        raise BadRequest(
            f"unexpected size for {where}: shape {list(shape)} of {datatype} takes {expected} bytes, got {len(data)}"
        )
    array = np.frombuffer(data, dtype)
    if datatype == "BOOL" and expected and array.view(np.uint8).max() > 1:
        array = array.view(np.uint8).astype(np.bool_)  # any byte but 0 is true; numpy would trust a 2 to be a 1
    return array


def _decode_bytes(where: str, shape: Shape, data: Buffer) -> Array:
    count = element_count(shape)
    view, position = memoryview(data), 0
    items: list[bytes] = []
    while position < len(view):
        if position + 4 > len(view):
            raise BadRequest(f"{where}: the 4-byte length at byte {position} is cut off")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if position + length > len(view):
            raise BadRequest(f"{where}: element {len(items)} claims {length} bytes, {len(view) - position} are left")
        items.append(bytes(view[position : position + length]))
        position += length
        if len(items) > count:
            break
    if len(items) != count:
        actual = f"more than {count}" if len(items) > count else str(len(items))
        raise BadRequest(f"{where}: shape {list(shape)} takes {count} elements, the data has {actual}")
    array = np.empty(count, dtype=object)
    array[:] = items
    return array


def encode_raw(tensor: Tensor) -> memoryview | bytes:
    """The tensor's bytes; a view of its own memory where that is contiguous."""
    if tensor.datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(item)) + item for item in tensor.array.ravel())
    array = np.ascontiguousarray(tensor.array, dtype=NUMPY_TYPES[tensor.datatype])
    return array.reshape(-1).view(np.uint8).data if array.size else b""
