"""Codec of V1 :predict: {"instances": rows} or {"inputs": columns} → tensors → {"predictions": …}. Pure.

Values are nested JSON without type or shape: the shape is that of the nesting, the datatype the model's. Bytes that are
not UTF-8 are sent as {"b64": "…"}.
"""

import re
import struct
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import nan
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import orjson

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.messages import quoted
from pilotlight_predictor.core.requests import UNNAMED, InferRequest, InferResponse, Inputs, Layout, Outputs
from pilotlight_predictor.core.tensors import Array, JsonText, Tensor, TensorSpec, bf16_to_float, check_strings
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.json_values import (
    FLOATS,
    HUGE,
    LONG_ARRAY,
    NONFINITE_NAMES,
    check_weight,
    dump_json,
    encoding_size,
    join_pieces,
    pack_values,
    quote_nonfinite,
    write_pieces,
)

Document = Mapping[str, Any]
ROWS: Final = "instances"
COLUMNS: Final = "inputs"
MAX_DIMS: Final = 64  # numpy's own limit
_decode = msgspec.json.Decoder().decode


def is_b64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def to_tensor(where: str, datatype: str, values: Any) -> Tensor:
    """Decode nested values; `where` names the field in errors, as in `instances`."""
    shape, flat = _flattened(where, values)
    if datatype == "BYTES":
        check_strings(where, len(flat))
    try:
        return Tensor(datatype, pack_values(where, datatype, shape, flat, partial(_elements, where, datatype)))
    except (OverflowError, struct.error):
        raise BadRequest(f"{where} has a number that does not fit {datatype}") from None


def _flattened(where: str, values: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape, from the nesting of the first elements, and all elements in a flat list."""
    shape: list[int] = []
    level = [values]
    while level and isinstance(level[0], list):
        if len(shape) == MAX_DIMS:
            raise BadRequest(f"{where} is nested deeper than {MAX_DIMS} levels")
        if not all(isinstance(item, list) for item in level):
            raise BadRequest(f"{where} is not a regular array: it mixes values and lists")
        if len(set(map(len, level))) > 1:
            raise BadRequest(f"{where} is not a regular array: its rows differ in length")
        shape.append(len(level[0]))
        level = list(chain.from_iterable(level))
    return tuple(shape), level


def _elements(where: str, datatype: str, flat: list[Any]) -> list[Any]:
    """Return the elements of a tensor. KServe's client writes null for NaN."""
    if datatype == "BYTES":
        return [_text(where, value) for value in flat]
    kind, expected = _KINDS.get(datatype, (int | bool, "an integer"))
    try:
        values = msgspec.convert(flat, list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        position = re.findall(r"\$\[(\d+)\]", str(error))[-1]
        raise _wrong(where, flat[int(position)], expected, datatype) from None
    if kind is not _NUMBER or set(map(type, values)) <= {float, int}:
        return values
    return [nan if value is None else float(value) for value in values]


def _text(where: str, value: Any) -> "str | _Bytes":
    try:
        if type(value) is str:
            value.encode()
            return value
        if is_b64(value) and type(value["b64"]) is str:
            return _Bytes(b64decode(value["b64"], validate=True))
    except UnicodeEncodeError:
        pass
    except (NotBase64, ValueError):
        raise BadRequest(f"{where} has a b64 that is not base64") from None
    raise _wrong(where, value, 'text or {"b64": "…"}', "BYTES")


def _wrong(where: str, value: Any, expected: str, datatype: str) -> BadRequest:
    quoted = f"{value!r:.50}".encode("ascii", "backslashreplace").decode()
    shown = "an object" if isinstance(value, dict) else quoted
    return BadRequest(f"{where} has {shown}, must be {expected} for {datatype}")


_NUMBER: Final = int | float | bool | Literal["NaN", "Infinity", "-Infinity"] | None
_KINDS: Final[Mapping[str, tuple[Any, str]]] = {
    "BOOL": (bool, "true or false"),
    **dict.fromkeys(FLOATS, (_NUMBER, "a number")),
}


class _Bytes(bytes):
    """Decoded b64 with the interface of str: `pack_values` calls encode() on each item."""

    def encode(self) -> bytes:
        return bytes(self)


def to_json(tensor: Tensor) -> Any:
    """Return the value for the JSON encoder: an array, or nested lists where NaN or infinities are written by name."""
    datatype, array = tensor
    if datatype == "BYTES":
        return _nested(array, _text_or_b64)
    if datatype == "BF16":
        array = bf16_to_float(np.ascontiguousarray(array)).reshape(array.shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _nested(array.astype(object), lambda value: NONFINITE_NAMES.get(str(value), value))
    return np.ascontiguousarray(array) if array.ndim else array.item()


def _nested(array: Array, write: Callable[[Any], Any]) -> Any:
    out = np.empty(array.size, dtype=object)
    out[:] = [write(item) for item in array.ravel()]
    return out.reshape(array.shape).tolist()


def _text_or_b64(item: bytes) -> Any:
    if isinstance(item, JsonText):
        return orjson.Fragment(bytes(item))
    try:
        return item.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(item).decode()}


class DecodedPredict(NamedTuple):
    """Request and the layout of its response; `single_instance`: one instance was sent to a model without batching."""

    request: InferRequest
    by_rows: bool
    single_instance: bool


def read_document(body: Buffer, such_as: str = '{"instances": […]}') -> dict[str, Any]:
    """Return the JSON object of the body; NaN and infinities, which JSON lacks, as strings. Raise BadRequest."""
    try:
        document = _decode(body)
    except RecursionError:
        raise BadRequest("the request is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        quoted = quote_nonfinite(bytes(body))
        if quoted is None:
            raise BadRequest(f"the body is not valid JSON: {error}") from None
        return read_document(quoted, such_as)
    if not isinstance(document, dict):
        raise BadRequest(f"the body must be a JSON object: {such_as}")
    return document


def decode_document(model: str, version: int, body: Buffer, verb: str) -> DecodedPredict:
    """Decode a body for a kserve.Model, which takes and returns V1's JSON."""
    if len(body) > HUGE:
        check_weight(body)
    request = InferRequest(model, {}, version, document=read_document(body), verb=verb)
    return DecodedPredict(request, by_rows=True, single_instance=False)


def decode_body(model: str, version: int, body: Buffer, specs: Sequence[TensorSpec], batched: bool) -> DecodedPredict:
    return decode_predict(model, version, read_document(body), specs, batched=batched)


def decode_predict(
    model: str, version: int, document: Document, specs: Sequence[TensorSpec], *, batched: bool
) -> DecodedPredict:
    by_rows = ROWS in document
    if by_rows == (COLUMNS in document):
        raise BadRequest(f"the body has {'both' if by_rows else 'neither'} of instances and inputs, must have one")
    known = {spec.name: spec for spec in specs}
    known |= {name: TensorSpec(name, spec.datatype, (-1,)) for spec in specs for name in spec.columns}
    if by_rows:
        columns = _columns(model, document[ROWS], specs, known)
    else:
        columns = document[COLUMNS]
        if not isinstance(columns, dict) or is_b64(columns):
            columns = _by_position(columns, COLUMNS, specs) or {_only(specs).name: columns}
        _check_known(model, columns, known)
    inputs: Inputs = {}
    form, several = ROWS if by_rows else COLUMNS, max(len(specs), len(columns)) > 1
    for name, values in columns.items():
        where = f"{form}['{name}']" if several else form
        if by_rows and known and known[name].shape == (-1, 1) and not any(isinstance(each, list) for each in values):
            values = [[each] for each in values]  # rows of a column
        inputs[name] = to_tensor(where, known[name].datatype if known else datatype_of_json(values), values)
    lone = by_rows and bool(known) and not batched and _remove_instance(model, inputs, known)
    return DecodedPredict(InferRequest(model, inputs, version), by_rows, lone)


def datatype_of_json(values: Any) -> str:
    """Return the datatype of values that the model does not declare."""
    while isinstance(values, list) and values and isinstance(values[0], list):
        values = list(chain.from_iterable(each for each in values if isinstance(each, list)))
    kinds = set(map(type, values if isinstance(values, list) else [values]))
    return "BOOL" if kinds == {bool} else "INT64" if kinds == {int} else "BYTES" if kinds & {str, dict} else "FP64"


def _check_known(model: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if known and name not in known:
            raise BadRequest(f"unexpected input '{name}' for model '{model}'; its inputs are {quoted(known)}")


def _columns(
    model: str, instances: Any, specs: Sequence[TensorSpec], known: Mapping[str, TensorSpec]
) -> dict[str, Any]:
    """Turn rows into columns: an instance is the value of the only input, or has all: an object, or a table's row."""
    if not isinstance(instances, list) or not instances:
        raise BadRequest("instances must be a list with at least one instance")
    can_be_elements = len(specs) == 1 and specs[0].name != "b64"
    if not any(isinstance(instance, dict) for instance in instances) or (
        can_be_elements and all(is_b64(instance) or isinstance(instance, str) for instance in instances)
    ):
        return _by_position(instances, ROWS, specs) or {_only(specs).name: instances}
    first = instances[0]
    _check_known(model, first if isinstance(first, dict) else (), known)
    for index, instance in enumerate(instances):
        if not isinstance(instance, dict) or not isinstance(first, dict) or instance.keys() != first.keys():
            raise BadRequest(f"instances[{index}] must be an object with the same names as instances[0]")
    return {name: [instance[name] for instance in instances] for name in first}


def _by_position(rows: Any, where: str, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Return the columns of a matrix for a model of a table, whose inputs are all columns [-1, 1]; else none."""
    if len(specs) < 2 or any(spec.shape != (-1, 1) for spec in specs):
        return {}
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        return {}
    for index, row in enumerate(rows):
        if len(row) != len(specs):
            names = ", ".join(spec.name for spec in specs)
            raise BadRequest(f"{where}[{index}] has {len(row)} values, the model has {len(specs)} columns: {names}")
    return {spec.name: [[row[index]] for row in rows] for index, spec in enumerate(specs)}


def _only(specs: Sequence[TensorSpec]) -> TensorSpec:
    if not specs:
        return TensorSpec(UNNAMED, "", ())  # of the only argument of a function in Python
    required = [spec for spec in specs if not spec.optional] or list(specs)
    if len(required) > 1:
        names = quoted(spec.name for spec in required)
        raise BadRequest(f"the model has the inputs {names}: each instance must be an object with their names")
    return required[0]


def _remove_instance(model: str, inputs: Inputs, known: Mapping[str, TensorSpec]) -> bool:
    """Remove the instance dimension in place, for a model without batching; return whether there was one."""
    if not all(tensor.array.ndim == len(known[name].shape) + 1 for name, tensor in inputs.items()):
        return False
    if any(len(tensor.array) != 1 for tensor in inputs.values()):
        raise BadRequest(f"model '{model}' does not batch: send one instance in a request")
    inputs |= {name: Tensor(tensor.datatype, tensor.array[0, ...]) for name, tensor in inputs.items()}
    return True


def encode_predictions(decoded: DecodedPredict, response: InferResponse) -> list[Buffer]:
    """Return the body, a long one in pieces."""
    outputs = response.outputs
    if response.layout is not None:
        return join_pieces(chain((b'{"predictions":',), _laid_out(outputs, response.layout), (b"}",)))
    if decoded.single_instance:
        outputs = {name: Tensor(datatype, array[None]) for name, (datatype, array) in outputs.items()}
    lengths = {len(array) if array.ndim else -1 for _, array in outputs.values()}
    if decoded.by_rows and lengths == {-1}:  # a model that takes one instance, and returns a value for it
        outputs, lengths = {name: Tensor(datatype, array[None]) for name, (datatype, array) in outputs.items()}, {1}
    if len(outputs) == 1:
        pieces = tensor_pieces(next(iter(outputs.values())))
    elif decoded.by_rows and len(lengths) == 1 and -1 not in lengths:  # all outputs have as many rows
        pieces = chain((b"[",), _row_pieces(outputs, lengths.pop()), (b"]",))
    else:
        pieces = object_pieces(outputs)
    return join_pieces(chain((b'{"predictions":',), pieces, (b"}",)))


def _laid_out(outputs: Outputs, layout: Layout) -> Iterator[bytes]:
    """Yield predictions as the server of the model's framework writes them."""
    columns = {
        name: Tensor(datatype, array.reshape(-1) if name in layout.flat else array)
        for name, (datatype, array) in outputs.items()
    }
    if layout.kind == "columns":
        return object_pieces(columns)
    first = next(iter(columns.values()))
    if layout.kind == "values":
        arrays = [column.array for column in columns.values()]
        return tensor_pieces(first if len(arrays) == 1 else Tensor(first.datatype, np.column_stack(arrays)))
    if layout.kind == "matrix":
        matrix = first.array.reshape(len(first.array), -1)
        columns = {str(index): Tensor(first.datatype, column) for index, column in enumerate(matrix.T)}
    elif len(layout.names) == len(columns):
        columns = dict(zip(layout.names, columns.values(), strict=True))
    return chain((b"[",), _row_pieces(columns, len(next(iter(columns.values())).array)), (b"]",))


def tensor_pieces(tensor: Tensor) -> Iterator[bytes]:
    datatype, array = tensor
    if encoding_size(array) <= LONG_ARRAY:
        return iter((dump_json(to_json(tensor)),))
    return write_pieces(array, lambda part: dump_json(to_json(Tensor(datatype, part))))


def object_pieces(outputs: Outputs) -> Iterator[bytes]:
    """Yield an object with the outputs by name."""
    for index, (name, tensor) in enumerate(outputs.items()):
        yield b"%b%b:" % (b"," if index else b"{", dump_json(name))
        yield from tensor_pieces(tensor)
    yield b"}" if outputs else b"{}"


def _row_pieces(outputs: Outputs, rows: int) -> Iterator[bytes]:
    """Yield an object for each row, with commas between them."""
    if sum(encoding_size(array) for _, array in outputs.values()) <= LONG_ARRAY:
        values = [to_json(tensor) for tensor in outputs.values()]
        yield dump_json([dict(zip(outputs, row, strict=True)) for row in zip(*values, strict=True)])[1:-1]
    elif rows > 1:
        middle = rows // 2
        yield from _row_pieces({name: Tensor(kind, array[:middle]) for name, (kind, array) in outputs.items()}, middle)
        yield b","
        rest = {name: Tensor(kind, array[middle:]) for name, (kind, array) in outputs.items()}
        yield from _row_pieces(rest, rows - middle)
    else:
        yield from object_pieces({name: Tensor(kind, array[0, ...]) for name, (kind, array) in outputs.items()})
