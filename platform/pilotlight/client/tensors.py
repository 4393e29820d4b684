"""numpy arrays as V2 tensors and back. Arrays are checked against the model's metadata; their memory is not copied.

A conversion that keeps every value is done: to a wider type, of integers that are in range, of integers that a float
holds exactly. Floats become narrower floats (numpy's default is float64, most models take FP32). Floats do not become
integers, nor numbers truth values.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final

from pilotlight.client.errors import InvalidInput
from pilotlight.contract import NUMPY_TYPES
from pilotlight.v2_tensors import (
    InputSpec,
    Tensor,
    flatten,
    has_no_names,
    pack_bytes,
    required_inputs,
    rows_by_name,
    unpack_bytes,
    with_columns,
)
from pilotlight.wire.messages import quoted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]
    Inputs = Mapping[str, ArrayLike] | ArrayLike | Any  # any DataFrame

BF16: Final = "BF16"
BYTES: Final = "BYTES"
COPIED_BYTES: Final = 16 << 10  # quicker to copy than to make a view of
TEXT_KINDS: Final = "OSU"  # numpy's letters for objects, bytes and text
FIXES: Final = {"f": "round the values to integers yourself, or give integers", "b": "compare them first: x != 0"}


def tensors_of(inputs: "Inputs", specs: list[InputSpec], model: str, *, binary: bool) -> list[Tensor]:
    """Return the tensors of a request. Raise InvalidInput for what the model does not take.

    A model whose metadata names no inputs gets the arrays as they are, its only argument without a name.
    """
    known = {each.name: each for each in with_columns(specs)}
    inputs = _by_name(inputs, specs, model)
    if not isinstance(inputs, Mapping):
        required = required_inputs(specs)
        if len(required) > 1:
            fix = f"give arrays by name: {{'{required[0].name}': array}}"
            raise InvalidInput(f"model '{model}' has the inputs {quoted(known)}; {fix}")
        inputs = {required[0].name if required else "": inputs}
    unknown = [name for name in inputs if known and name not in known]
    if unknown:
        raise InvalidInput(f"model '{model}' has no input '{unknown[0]}'; its inputs are {quoted(known)}")
    return [_tensor(known.get(name), name, value, model, binary) for name, value in inputs.items()]


def _by_name(inputs: Any, specs: list[InputSpec], model: str) -> Any:
    """Return the columns of a DataFrame, or rows, by input name; all else as it is."""
    import numpy as np

    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):  # of pandas or polars
        columns = {str(name): inputs[name].to_numpy() for name in inputs.columns}
        return inputs.to_numpy() if has_no_names(specs, columns) else columns
    try:
        return rows_by_name(inputs.tolist() if isinstance(inputs, np.ndarray) and len(specs) > 1 else inputs, specs)
    except ValueError as error:
        raise InvalidInput(f"model '{model}': {error}") from None


def _tensor(spec: InputSpec | None, name: str, value: "ArrayLike", model: str, binary: bool) -> Tensor:
    import numpy as np

    array = value if isinstance(value, np.ndarray) else _array(value, name, model)
    spec = spec or InputSpec(name, datatype_of(array, f"model '{model}': input '{name}'"), array.shape)
    shape = spec.fit(array.shape)
    if shape is None:
        expected, actual = list(spec.shape), list(array.shape)
        same = len(actual) == len(expected)
        fix = "the sizes must be equal, -1 takes any" if same else _reshape(array.size, expected)
        raise InvalidInput(f"model '{model}': input '{name}' has shape {actual}, expected {expected}; {fix}")
    if spec.datatype == BYTES:
        elements = [_element(each, name, model) for each in array.ravel().tolist()]
        if binary:
            return Tensor(name, BYTES, shape, pack_bytes(elements))
        return Tensor(name, BYTES, shape, data=[each.decode() for each in elements])
    converted = _converted(array, spec, model)
    if not binary:
        return Tensor(name, spec.datatype, shape, data=converted.ravel().tolist())
    # Row by row: a view of a large array, unless its elements lie in another order.
    data = converted.tobytes() if converted.nbytes < COPIED_BYTES else converted.reshape(-1).view("u1").data
    return Tensor(name, spec.datatype, shape, data)


def _reshape(count: int, expected: list[int]) -> str:
    """Return how so many values get the expected shape, or that they cannot."""
    row = max(1, prod(size for size in expected if size != -1))
    if count % row if -1 in expected else count != row:
        return f"{count} values do not fit this shape"
    return f"reshape it to {expected if expected.count(-1) < 2 else f'{len(expected)} dimensions'}"


def _array(value: "ArrayLike", name: str, model: str) -> "Array":
    import numpy as np

    try:
        array = np.asarray(value)
        return array if array.dtype.kind not in "SU" else np.asarray(value, object)  # numpy strips zeros off text
    except ValueError:
        message = f"model '{model}': input '{name}' is nested unevenly; inner lists must have equal lengths"
        raise InvalidInput(message) from None


def datatype_of(array: "Array", subject: str) -> str:
    """Return V2's name of an array's type, of any byte order. Raise InvalidInput."""
    if array.dtype.kind in TEXT_KINDS:
        return BYTES
    if array.dtype.name == "bfloat16":
        return BF16
    kind = array.dtype.newbyteorder("<").str.lstrip("|")
    names = [name for name, each in NUMPY_TYPES.items() if each in (kind, kind.replace("b1", "?"))]
    if not names:
        raise InvalidInput(f"{subject} has datatype {array.dtype}, unsupported by V2; convert it with .astype()")
    return names[0]


@lru_cache
def _kind(datatype: str) -> "np.dtype[Any]":
    import numpy as np

    return np.dtype(NUMPY_TYPES.get(datatype, "<f4"))  # BF16 by way of FP32


def _converted(array: "Array", spec: InputSpec, model: str) -> "Array":
    """Return the array in the input's datatype and byte order, C-contiguous."""
    import numpy as np

    kind = _kind(spec.datatype)
    if array.dtype != kind:
        subject = f"model '{model}': input '{spec.name}'"
        actual = datatype_of(array, subject)
        if actual == BF16 == spec.datatype:
            return np.ascontiguousarray(array).view("<u2")
        possible = np.can_cast(array.dtype, kind, "same_kind") or {array.dtype.kind, kind.kind} == {*"iu"}
        if actual in (BF16, BYTES) or not possible:
            fix = FIXES.get(kind.kind if kind.kind == "b" else array.dtype.kind, f"convert it: .astype('{kind.name}')")
            raise InvalidInput(f"{subject} has datatype {actual}, expected {spec.datatype}; {fix}")
        array = _cast(array, kind, subject, spec.datatype)
    return _to_bf16(np.ascontiguousarray(array)) if spec.datatype == BF16 else array


def _cast(array: "Array", kind: "np.dtype[Any]", subject: str, datatype: str) -> "Array":
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(kind, order="C")
    if np.can_cast(array.dtype, kind, "safe"):
        return converted
    if array.dtype.kind == "f":
        lost = np.isfinite(array) & ~np.isfinite(converted)
    else:
        lost = (converted.astype(array.dtype) != array) | ((converted < 0) != (array < 0))
    if lost.any():
        value = array[lost][0]
        raise InvalidInput(f"{subject}: {value} ({array.dtype.name}) does not fit {datatype}; give values in its range")
    return converted


def _to_bf16(array: "Array") -> "Array":
    """Return the upper halves of FP32, rounded to the nearest even; NaN stays one."""
    import numpy as np

    bits = array.view("<u4")
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype("<u2")


def _element(value: Any, name: str, model: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise InvalidInput(f"model '{model}': input '{name}' has datatype {type(value).__name__}, expected BYTES; "
                       "give str or bytes")  # fmt: skip


def array_of(tensor: Tensor) -> "Array":
    """Return an output: a view of the response where it can be, BYTES as objects of type bytes, BF16 as float32."""
    import numpy as np

    raw, shape = tensor.raw, tuple(tensor.shape)
    if min(shape, default=0) < 0 or (raw is None and tensor.data is None):
        raise ValueError(f"it has no values, or not the shape {list(shape)}")
    if tensor.datatype == BYTES:
        elements = unpack_bytes(raw) if raw is not None else [each.encode() for each in flatten(tensor.data)]
        array = np.empty(len(elements), object)
        array[:] = elements
    elif raw is None:
        array = np.array(tensor.data, NUMPY_TYPES.get(tensor.datatype, "<f4"))
    elif tensor.datatype == BF16:
        array = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    else:
        array = np.frombuffer(raw, NUMPY_TYPES[tensor.datatype])
    return array.reshape(shape)
