"""Datatypes and tensors of the V2 protocol, which every protocol decodes to and every backend computes on.

A tensor is a numpy array and the V2 name of its type. BF16 has no numpy type and is stored as uint16 bits; BYTES is an
object array of `bytes`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]

NUMPY_TYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(object),
}
DATATYPES: Final = frozenset(NUMPY_TYPES)
FROM_NUMPY: Final[dict[np.dtype[Any], str]] = {
    dtype: name for name, dtype in NUMPY_TYPES.items() if name not in {"BF16", "BYTES"}
}


class Tensor(NamedTuple):
    """A tensor; the array's shape is the tensor's shape."""

    datatype: str
    array: Array


# Tensor(datatype, array) in a third of the time, for hot paths.
tensor_of: Final[Callable[[tuple[str, Array]], Tensor]] = partial(tuple.__new__, Tensor)


class TensorSpec(NamedTuple):
    """A declared input or output: shape as the client sends it, -1 for variable dimensions."""

    name: str
    datatype: str
    shape: Shape
    optional: bool = False


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
        array = np.array([_as_bytes(item) for item in array.ravel()], dtype=object).reshape(array.shape)
    return Tensor(datatype, array)


def _as_bytes(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def element_count(shape: Iterable[int]) -> int:
    return prod(shape)


def bf16_from_float(values: Array) -> Array:
    """float32 → the bits of bfloat16, rounding half to even as hardware does."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet_nan, rounded >> 16).astype("<u2")


def bf16_to_float(bits: Array) -> Array:
    return (bits.astype("<u4") << 16).view("<f4")
