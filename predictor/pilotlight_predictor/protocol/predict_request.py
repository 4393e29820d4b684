"""The body of /predict → lists of numbers → requests that a model can run. Pure.

`{"inputs": […]}` is one list, `{"batch": [[…], …]}` several. What is wrong with them is `Invalid`, status 422, and
names the field with its place, as in `batch[1][3]`.
"""

from collections.abc import Iterator, Sequence
from math import isfinite, prod
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.tensors import NUMPY_TYPES, Array, Shape, Tensor, TensorSpec, bf16_from_float

MAX_NUMBERS: Final = 10_000  # in one list
SHOWN: Final = 60  # characters of a client's value that an error repeats
MISSING: Final = 'Missing inputs: send {"inputs": [numbers]}, or {"batch": [[numbers], …]}'
Rows = list[list[Any]]
_NUMBERS: Final = frozenset({int, float})


class Invalid(BadRequest):
    """A request that is well-formed HTTP and cannot be predicted on: 422, as FastAPI says it."""

    status = 422


class Asked(NamedTuple):
    """What a client wants. Empty texts are what it did not say."""

    rows: Rows
    batch: bool
    model_name: str = ""
    model_version: str = ""
    sticky_key: str = ""
    output: str = ""

    def place(self, row: int) -> str:
        return f"batch[{row}]" if self.batch else "inputs"


class Part(NamedTuple):
    """One request to the model, with as many rows of the client's; `lead`: its first dimension counts them."""

    request: InferRequest
    rows: int
    lead: bool


def read_body(body: Buffer) -> Asked:
    document = _document(body)
    if not isinstance(document, dict):
        raise Invalid(f"the body must be a JSON object. {MISSING}")
    single, batch = document.get("inputs"), document.get("batch")
    if single is None and batch is None:
        raise Invalid(MISSING)
    if single is not None and batch is not None:
        raise Invalid("inputs and batch are both there; send one of them")
    texts = (_text(document, name) for name in ("model_name", "model_version", "sticky_key", "output"))
    rows: Any = [single] if batch is None else _rows(batch)
    return checked(Asked(rows, batch is not None, *texts))


def checked(asked: Asked) -> Asked:
    """As it is, when each of its lists has numbers, and not too many."""
    for index, row in enumerate(asked.rows):
        _check_numbers(asked.place(index), row)
    return asked


def parts(asked: Asked, model: str, version: int, spec: TensorSpec, max_rows: int) -> list[Part]:
    """As few requests as the model's batch allows; lists of different lengths cannot share one."""
    if spec.datatype == "BYTES":
        raise Invalid(
            f"model '{model}' takes text in its input '{spec.name}', not numbers; ask it at /v2/models/{model}"
        )
    lead, dims = _row_dims(spec.shape, bool(max_rows))
    arrays = [
        _array(asked.place(index), row, spec.datatype).reshape(_row_shape(asked.place(index), dims, len(row), model))
        for index, row in enumerate(asked.rows)
    ]
    return [
        Part(InferRequest(model, {spec.name: Tensor(spec.datatype, array)}, version), rows, lead)
        for rows, array in _joined(arrays, max_rows, lead)
    ]


def _joined(arrays: Sequence[Array], max_rows: int, lead: bool) -> Iterator[tuple[int, Array]]:
    if max_rows and len({array.shape for array in arrays}) == 1:
        for start in range(0, len(arrays), max_rows):
            chunk = arrays[start : start + max_rows]
            yield len(chunk), np.stack(chunk)
        return
    for array in arrays:
        yield 1, array[None] if lead else array


def _row_dims(shape: Shape, batched: bool) -> tuple[bool, Shape]:
    """Whether a dimension of rows stands in front, and the dimensions of one row behind it."""
    lead = batched or (len(shape) > 1 and shape[0] == -1)
    return lead, shape[1:] if lead else shape


def _row_shape(place: str, dims: Shape, count: int, model: str) -> Shape:
    """`count` numbers in those dimensions: the last that varies takes what the others leave."""
    fixed = prod(size for size in dims if size != -1)
    variable = [index for index, size in enumerate(dims) if size == -1]
    if count % fixed if variable and fixed else count != fixed:
        wanted = f"a multiple of {fixed}" if variable else str(fixed)
        raise Invalid(f"{place} has {count} numbers, must have {wanted}: model '{model}' takes {list(dims)}")
    shape = [1 if size == -1 else size for size in dims]
    if variable:
        shape[variable[-1]] = count // fixed
    return tuple(shape)


def _array(place: str, row: list[Any], datatype: str) -> Array:
    kind = NUMPY_TYPES[datatype]
    if datatype == "BF16":
        return bf16_from_float(_floats(place, row, np.dtype("<f4")))
    if kind.kind == "f":
        return _floats(place, row, kind)
    least, most = (0, 1) if datatype == "BOOL" else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for index, value in enumerate(row):
        if not least <= value <= most or value != int(value):
            must = f"a whole number from {least} to {most}"
            raise Invalid(f"{place}[{index}] = {_shown(value)}, must be {must}: the model takes {datatype}")
    return np.array([int(value) for value in row], dtype=kind)


def _floats(place: str, row: list[Any], kind: "np.dtype[Any]") -> Array:
    with np.errstate(over="ignore"):
        array = np.array(row, dtype="<f8").astype(kind)
    if not np.isfinite(array).all():
        index = int(np.flatnonzero(~np.isfinite(array))[0])
        raise Invalid(f"{place}[{index}] = {_shown(row[index])}, is too large: the model takes numbers of {kind.name}")
    return array


def _document(body: Buffer) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _with_nan(body, error)


def _with_nan(body: Buffer, error: orjson.JSONDecodeError) -> Any:
    """Python's own JSON writes NaN and Infinity: read them, so that the field that has them can be named."""
    import json

    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Invalid(f"the body is not valid JSON: {error}") from None
    return document


def _rows(batch: Any) -> Rows:
    if not isinstance(batch, list):
        raise Invalid(f"batch = {_shown(batch)}, must be a list of lists of numbers")
    if not batch:
        raise Invalid("batch cannot be empty")
    if len(batch) > MAX_NUMBERS:
        raise Invalid(f"batch has {len(batch)} lists, at most {MAX_NUMBERS} are taken")
    return batch


def _check_numbers(place: str, row: Any) -> None:
    if not isinstance(row, list):
        raise Invalid(f"{place} = {_shown(row)}, must be a list of numbers")
    if not row:
        raise Invalid(f"{place} cannot be empty")
    if len(row) > MAX_NUMBERS:
        raise Invalid(f"{place} has {len(row)} numbers, at most {MAX_NUMBERS} are taken")
    if set(map(type, row)) <= _NUMBERS and all(map(_finite, row)):
        return
    index = next(index for index, value in enumerate(row) if type(value) not in _NUMBERS or not _finite(value))
    must = "a finite number (NaN and Inf are refused)" if type(row[index]) in _NUMBERS else "a number"
    raise Invalid(f"{place}[{index}] = {_shown(row[index])}, must be {must}")


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Invalid(f"{name} = {_shown(value)}, must be text")
    return value


def _shown(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode() if not isinstance(value, float | int) else repr(value)
    except (TypeError, ValueError):  # more digits than Python writes
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
