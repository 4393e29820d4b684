"""Datatypes and tensors of the V2 protocol, which every protocol decodes to and every backend computes on.

BF16 has no numpy type and is stored as uint16 bits; BYTES is an object array of `bytes`. Raw bytes are little-endian
and row-major, as in the V2 binary extension and gRPC's raw contents.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight import contract
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
element_count: Final[Callable[[Iterable[int]], int]] = prod

NUMPY_TYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(kind) for name, kind in {**contract.NUMPY_TYPES, "BF16": "<u2", "BYTES": "O"}.items()
}
DATATYPES: Final = frozenset(NUMPY_TYPES)
FROM_NUMPY: Final[dict[np.dtype[Any], str]] = {
    dtype: name for name, dtype in NUMPY_TYPES.items() if name not in {"BF16", "BYTES"}
}
MAX_STRINGS: Final = 1 << 20  # elements of a BYTES tensor: each is an object of its own, read in 0.2 µs
_SLICE: Final = 1 << 15
_LENGTH: Final = Struct("<I")  # of an element of BYTES


class Tensor(NamedTuple):
    """A tensor; the array's shape is the tensor's shape."""

    datatype: str
    array: Array


# Tensor(datatype, array) in a third of the time, for hot paths.
tensor_of: Final[Callable[[tuple[str, Array]], Tensor]] = partial(tuple.__new__, Tensor)


class JsonText(bytes):
    """An element of BYTES that is JSON: protocols of JSON embed it, all others send it as text."""


class TensorSpec(NamedTuple):
    """A declared input or output: shape as the client sends it, -1 for variable dimensions.

    `columns`: names of a matrix's columns, which clients may send as tensors of their own instead.
    """

    name: str
    datatype: str
    shape: Shape
    optional: bool = False
    columns: tuple[str, ...] = ()


def datatype_of(array: Array) -> str:
    """Return the V2 datatype of an array that a backend returned. Raises TypeError if there is none."""
    name = FROM_NUMPY.get(array.dtype)
    if name is not None:
        return name
    if array.dtype.kind in "OSU":
        return "BYTES"
    raise TypeError(
        f"an array of {array.dtype} has no V2 datatype; convert it to one of {', '.join(sorted(DATATYPES))}"
    )


def tensor(array: Array) -> Tensor:
    """Wrap an array that a backend returned; strings become BYTES."""
    datatype = datatype_of(array)
    if datatype == "BYTES":
        items = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel()]
        array = np.array(items, dtype=object).reshape(array.shape)
    return Tensor(datatype, array)


def zeros(datatype: str, shape: Shape) -> Tensor:
    """Return a tensor of zeros; of BYTES, of empty strings."""
    dtype = NUMPY_TYPES[datatype]
    return Tensor(datatype, np.full(shape, b"", dtype) if datatype == "BYTES" else np.zeros(shape, dtype))


def check_strings(where: str, count: int) -> None:
    """Raise BadRequest if a BYTES tensor has too many elements; before they are read."""
    if count > MAX_STRINGS:
        raise BadRequest(f"{where} has {count} elements of BYTES, the limit is {MAX_STRINGS}; split the request")


def bf16_from_float(values: Array) -> Array:
    """float32 → the bits of bfloat16, rounding half to even as hardware does."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet_nan, rounded >> 16).astype("<u2")


def bf16_to_float(bits: Array) -> Array:
    return (bits.astype("<u4") << 16).view("<f4")


def decode_raw(where: str, datatype: str, shape: Shape, data: Buffer) -> Tensor:
    """Decode raw bytes, numbers as a read-only view of `data`; `where` names the field in errors, as in `input 'x'`."""
    array = _decode_bytes(where, shape, data) if datatype == "BYTES" else _decode_numbers(where, datatype, shape, data)
    try:
        return Tensor(datatype, array.reshape(shape))
    except ValueError:  # with a dimension of 0, numpy still checks the product of the others
        raise BadRequest(f"{where}: shape {list(shape)} is too large") from None


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
    check_strings(where, count)
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
    return objects(items)


def objects(values: Sequence[Any], shape: Shape = (-1,)) -> Array:
    """Return an array of Python objects, which numpy would convert itself."""
    array: Array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


def fits(shape: Shape, declared: Shape) -> bool:
    """Whether a shape is the declared one, whose variable dimensions are -1."""
    return len(shape) == len(declared) and all(want in (-1, got) for want, got in zip(declared, shape, strict=True))


def encode_raw(tensor: Tensor) -> memoryview | bytes:
    """The tensor's bytes; a view of its own memory where that is contiguous."""
    if tensor.datatype == "BYTES":
        items = tensor.array.ravel()
        # In slices, since a join holds the GIL: 70 ms for a million strings.
        slices = (items[start : start + _SLICE] for start in range(0, items.size, _SLICE))
        return b"".join([b"".join([_LENGTH.pack(len(item)) + item for item in piece]) for piece in slices])
    array = np.ascontiguousarray(tensor.array, dtype=NUMPY_TYPES[tensor.datatype])
    return array.reshape(-1).view(np.uint8).data if array.size else b""
