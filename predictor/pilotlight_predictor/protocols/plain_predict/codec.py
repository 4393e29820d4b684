"""Codec of /predict: body → lists of numbers, or texts → InferRequests, and their responses → predictions. Pure.

`{"inputs": […]}` is one list, `{"batch": [[…], …]}` several; a text stands in the place of a list. Errors are
InvalidInput, status 422, and name the field, as in `batch[1][3]`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import isfinite, prod
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.core.tensors import (
    NUMPY_TYPES,
    Array,
    JsonText,
    Shape,
    Tensor,
    TensorSpec,
    bf16_from_float,
    bf16_to_float,
    objects,
)
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.json_values import LONG_ARRAY, dump_json, encoding_size, join_pieces, write_pieces

MAX_NUMBERS: Final = 10_000  # in one list
SHOWN: Final = 60  # characters of a value quoted in an error
MISSING: Final = 'Missing inputs: send {"inputs": [numbers]}, or {"batch": [[numbers], …]}'
Rows = list[Any]  # each a list of numbers, or a text
_NUMBERS: Final = frozenset({int, float})


class InvalidInput(BadRequest):
    """Invalid body: 422, as with FastAPI."""

    status = 422


class PredictRequest(NamedTuple):
    """Decoded body; empty strings stand for absent fields."""

    rows: Rows
    batch: bool
    model_name: str = ""
    model_version: str = ""
    sticky_key: str = ""
    output: str = ""

    def field(self, row: int) -> str:
        return f"batch[{row}]" if self.batch else "inputs"


class PredictPart(NamedTuple):
    """One InferRequest with some of the rows; `lead`: its first dimension is the row."""

    request: InferRequest
    rows: int
    lead: bool


def read_body(body: Buffer) -> PredictRequest:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        document = _with_nan(body, error)
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object. {MISSING}")
    single, batch = document.get("inputs"), document.get("batch")
    if single is None and batch is None:
        raise InvalidInput(MISSING)
    if single is not None and batch is not None:
        raise InvalidInput("inputs and batch are both set; send one of them")
    texts = []
    for name in ("model_name", "model_version", "sticky_key", "output"):
        value = document.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{name} = {_quoted(value)}, must be text")
        texts.append(value or "")
    rows: Any = [single] if batch is None else _rows(batch)
    return check_rows(PredictRequest(rows, batch is not None, *texts))


def check_rows(request: PredictRequest) -> PredictRequest:
    """Return the request. Raise InvalidInput unless each row is a text or has numbers, at most MAX_NUMBERS."""
    for index, row in enumerate(request.rows):
        if not isinstance(row, str):
            _check_numbers(request.field(index), row)
    return request


def split_request(
    request: PredictRequest, model: str, version: int, spec: TensorSpec, max_rows: int
) -> list[PredictPart]:
    """Return as few InferRequests as the model's batch size allows; rows of different lengths are not batched."""
    for index, row in enumerate(request.rows):
        if isinstance(row, str) != (spec.datatype == "BYTES"):
            must = "a list of numbers" if isinstance(row, str) else "text"
            takes = f"model '{model}' takes {'text' if must == 'text' else spec.datatype} in its input '{spec.name}'"
            raise InvalidInput(f"{request.field(index)} = {_quoted(row)}, must be {must}: {takes}")
    lead = bool(max_rows) or (len(spec.shape) > 1 and spec.shape[0] == -1)  # the first dimension is the row
    dims = spec.shape[1:] if lead else spec.shape
    arrays = [
        _array(request.field(index), row, spec.datatype).reshape(
            _row_shape(request.field(index), dims, 1 if isinstance(row, str) else len(row), model)
        )
        for index, row in enumerate(request.rows)
    ]
    return [
        PredictPart(InferRequest(model, {spec.name: Tensor(spec.datatype, array)}, version), rows, lead)
        for rows, array in _batches(arrays, max_rows, lead)
    ]


def _batches(arrays: Sequence[Array], max_rows: int, lead: bool) -> Iterator[tuple[int, Array]]:
    if max_rows and len({array.shape for array in arrays}) == 1:
        for start in range(0, len(arrays), max_rows):
            chunk = arrays[start : start + max_rows]
            yield len(chunk), np.stack(chunk)
        return
    for array in arrays:
        yield 1, array[None] if lead else array


def _row_shape(field: str, dims: Shape, count: int, model: str) -> Shape:
    """Return the shape of `count` numbers: the last variable dimension takes them, the others are 1."""
    fixed = prod(size for size in dims if size != -1)
    variable = [index for index, size in enumerate(dims) if size == -1]
    if count % fixed if variable and fixed else count != fixed:
        expected = f"a multiple of {fixed}" if variable else str(fixed)
        raise InvalidInput(f"{field} has {count} numbers, must have {expected}: model '{model}' takes {list(dims)}")
    shape = [1 if size == -1 else size for size in dims]
    if variable:
        shape[variable[-1]] = count // fixed
    return tuple(shape)


def _array(field: str, row: Any, datatype: str) -> Array:
    kind = NUMPY_TYPES[datatype]
    if datatype == "BYTES":
        return np.array([row.encode()], dtype=kind)
    if datatype == "BF16":
        return bf16_from_float(_floats(field, row, np.dtype("<f4")))
    if kind.kind == "f":
        return _floats(field, row, kind)
    low, high = (0, 1) if datatype == "BOOL" else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for index, value in enumerate(row):
        if not low <= value <= high or value != int(value):
            must = f"a whole number from {low} to {high}"
            raise InvalidInput(f"{field}[{index}] = {_quoted(value)}, must be {must}: the model takes {datatype}")
    return np.array([int(value) for value in row], dtype=kind)


def _floats(field: str, row: list[Any], kind: "np.dtype[Any]") -> Array:
    with np.errstate(over="ignore"):
        array = np.array(row, dtype="<f8").astype(kind)
    if not np.isfinite(array).all():
        index = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InvalidInput(
            f"{field}[{index}] = {_quoted(row[index])}, is too large: the model takes numbers of {kind.name}"
        )
    return array


def _with_nan(body: Buffer, error: orjson.JSONDecodeError) -> Any:
    """Parse a body with NaN or Infinity, as Python's json writes them, so that the error can name the field."""
    with suppress(ValueError, RecursionError):
        document = json.loads(bytes(body))
        if isinstance(document, dict):
            return document
    raise InvalidInput(f"the body is not valid JSON: {error}") from None


def _rows(batch: Any) -> Rows:
    if not isinstance(batch, list):
        raise InvalidInput(f"batch = {_quoted(batch)}, must be a list of lists of numbers")
    if not batch:
        raise InvalidInput("batch cannot be empty")
    if len(batch) > MAX_NUMBERS:
        raise InvalidInput(f"batch has {len(batch)} lists, the limit is {MAX_NUMBERS}")
    return batch


def _check_numbers(field: str, row: Any) -> None:
    if not isinstance(row, list):
        raise InvalidInput(f"{field} = {_quoted(row)}, must be a list of numbers")
    if not row:
        raise InvalidInput(f"{field} cannot be empty")
    if len(row) > MAX_NUMBERS:
        raise InvalidInput(f"{field} has {len(row)} numbers, the limit is {MAX_NUMBERS}")
    if set(map(type, row)) <= _NUMBERS and all(map(_finite, row)):
        return
    index = next(index for index, value in enumerate(row) if type(value) not in _NUMBERS or not _finite(value))
    must = "a finite number (not NaN or Inf)" if type(row[index]) in _NUMBERS else "a number"
    raise InvalidInput(f"{field}[{index}] = {_quoted(row[index])}, must be {must}")


def _finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer beyond the range of float
        return False


def _quoted(value: Any) -> str:
    try:
        text = orjson.dumps(value).decode() if not isinstance(value, float | int) else repr(value)
    except (TypeError, ValueError):  # more digits than Python converts
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def encode_predictions(
    parts: Sequence[PredictPart], responses: Sequence[InferResponse], *, batch: bool, version: str, seconds: float
) -> list[Buffer]:
    """Return the body with the predictions of the first output: a list for `inputs`, a list of lists for `batch`."""
    pieces = [b'{"predictions":[' if batch else b'{"predictions":']
    rows = (row for part, response in zip(parts, responses, strict=True) for row in _predictions(part, response))
    for index, row in enumerate(rows):
        if index:
            pieces.append(b",")
        if encoding_size(row) <= LONG_ARRAY:
            pieces.append(_write(row))
        else:
            pieces.extend(write_pieces(row, _write))
    end = dump_json({"model_version": version, "latency_ms": round(seconds * 1000, 3)})
    pieces.append((b"]," if batch else b",") + end[1:])
    return join_pieces(pieces)


def _predictions(part: PredictPart, response: InferResponse) -> Iterator[Array]:
    """Yield the prediction of each row; an output without a row dimension belongs to all rows."""
    datatype, array = next(iter(response.outputs.values()))
    array = bf16_to_float(array) if datatype == "BF16" else array
    split = part.lead and array.ndim > 0 and len(array) == part.rows
    for index in range(part.rows):
        yield np.atleast_1d(array[index, ...] if split else array)


def _write(array: Array) -> bytes:
    """Return the JSON, with BYTES as text."""
    if array.dtype != object:
        return dump_json(np.ascontiguousarray(array))
    texts = [
        orjson.Fragment(bytes(item)) if isinstance(item, JsonText) else item.decode("utf-8", "replace")
        for item in array.ravel()
    ]
    return dump_json(objects(texts, array.shape).tolist())
