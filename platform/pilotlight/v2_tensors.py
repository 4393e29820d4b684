"""Bodies of V2 inference over HTTP: JSON, and after it the memory of binary tensors; inputs of a model's metadata."""

import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from pilotlight.contract import HEADER_INFERENCE_LENGTH, NUMPY_TYPES
from pilotlight.wire.http_client import decode_json

SIZES: Final = {**{name: int(kind[-1]) if kind != "?" else 1 for name, kind in NUMPY_TYPES.items()}, "BF16": 2}
MAX_HEAD: Final = 4096  # of a response whose tensors are binary: nothing that would take long to decode
Memory = bytes | memoryview


class InputSpec(NamedTuple):
    """One input of a model's metadata; -1 in `shape` is any size. Each of `columns` can be sent as its own tensor."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    columns: tuple[str, ...] = ()

    def fit(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the shape to send values of `shape` with: as it is, or with a batch dimension of 1; None: neither.

        A list of values for [-1, 1], a column, becomes its rows.
        """
        rows = [(*shape, 1)] if self.shape == (-1, 1) else []
        for each in (shape, (1, *shape), *rows):
            pairs = zip(self.shape, each, strict=False)
            if len(each) == len(self.shape) and all(size in (-1, actual) for size, actual in pairs):
                return each
        return None


class Tensor(NamedTuple):
    """One input or output: `raw` is its memory, or else `data` its values in JSON."""

    name: str
    datatype: str
    shape: Sequence[int]
    raw: Memory | None = None
    data: Any = None


def inputs_of(metadata: Mapping[str, Any]) -> list[InputSpec]:
    return [
        InputSpec(each["name"], each["datatype"], tuple(each["shape"]), **_parameters(each))
        for each in metadata.get("inputs", ())
    ]


def _parameters(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server of Pilotlight adds to an input; other servers have no parameters there."""
    parameters = tensor.get("parameters")
    if not isinstance(parameters, dict):
        return {}
    columns = parameters.get("columns")
    names = tuple(map(str, columns)) if isinstance(columns, list) else ()
    return {"optional": parameters.get("optional") is True, "columns": names}


def with_columns(inputs: Sequence[InputSpec]) -> list[InputSpec]:
    """Return the inputs, and after them each column of a matrix as an input of its own."""
    names = {each.name for each in inputs}
    columns = [(name, each.datatype) for each in inputs for name in each.columns if name not in names]
    return [*inputs, *(InputSpec(name, datatype, (-1, 1), True) for name, datatype in columns)]


def required_inputs(inputs: Sequence[InputSpec]) -> list[InputSpec]:
    """Return the inputs that a request must have; all if every one is optional."""
    return [each for each in inputs if not each.optional] or list(inputs)


def rows_by_name(rows: Any, inputs: Sequence[InputSpec]) -> Any:
    """Return rows as lists by input name; all else as it is. Raise ValueError for rows that are unlike.

    Rows are objects, or lists where inputs are columns [-1, 1] or several required values [1]; a flat list is a row.
    """
    if not isinstance(rows, list) or not rows:
        return rows
    if all(isinstance(row, dict) for row in rows):
        if any(row.keys() != rows[0].keys() for row in rows):
            raise ValueError("the rows have different names; each row must be an object with the same names")
        return {name: [row[name] for row in rows] for name in rows[0]}
    shapes = {each.shape for each in inputs}
    if len(inputs) < 2 or not (shapes == {(-1, 1)} or (shapes == {(1,)} and len(required_inputs(inputs)) > 1)):
        return rows
    if not any(isinstance(row, list | tuple) for row in rows):
        rows = [rows]
    if not all(isinstance(row, list | tuple) and len(row) == len(inputs) for row in rows):
        columns = ", ".join(each.name for each in inputs)
        message = f"the model has {len(inputs)} columns: {columns}; each row must have a value for each, in this order"
        raise ValueError(message)
    return {each.name: [row[index] for row in rows] for index, each in enumerate(inputs)}


def has_no_names(inputs: Sequence[InputSpec], names: Collection[str]) -> bool:
    """Whether the columns of a table, which have these names, are those of the only input, which names none itself."""
    required = required_inputs(inputs)
    return len(required) == 1 and not required[0].columns and required[0].name not in names


def encode_request(tensors: Iterable[Tensor], **parameters: Any) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request with these inputs and parameters."""
    pieces, headers = encode_pieces(tensors, {"parameters": parameters} if parameters else {})
    return b"".join(pieces), headers


def encode_pieces(tensors: Iterable[Tensor], fields: Mapping[str, Any]) -> tuple[list[Memory], dict[str, str]]:
    """Return the body as the JSON, with `fields` beside its inputs, and the memory of each tensor; and its headers."""
    inputs, raws = list[dict[str, Any]](), list[Memory]()
    for each in tensors:
        values: dict[str, Any] = {"data": each.data}
        if each.raw is not None:
            values = {"parameters": {"binary_data_size": len(each.raw)}}
            raws.append(each.raw)
        inputs.append({"name": each.name, "shape": list(each.shape), "datatype": each.datatype, **values})
    whole = {"inputs": inputs, **fields}
    document = orjson.dumps(whole) if len(raws) == len(inputs) else json.dumps(whole).encode()  # which writes NaN
    if not raws:
        return [document], {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_INFERENCE_LENGTH: str(len(document))}
    return [document, *raws], headers


def decode_response(headers: Mapping[str, str], body: bytes) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the JSON of a response and its outputs, which are views of `body`. `headers` have lower-case names.

    Raise ValueError for another body.
    """
    offset = length = int(headers.get(HEADER_INFERENCE_LENGTH, len(body)))
    outputs, memory, head = list[Tensor](), memoryview(body), body[:length]
    document = orjson.loads(head) if length < min(MAX_HEAD, len(body)) else decode_json(head)
    try:
        for each in document["outputs"]:
            size = (each.get("parameters") or {}).get("binary_data_size")
            if min(length, size or 0) < 0:
                raise ValueError(f"the response has a size of {min(length, size or 0)} bytes")
            raw = None if size is None else memory[offset : offset + size]
            outputs.append(Tensor(each["name"], each["datatype"], each["shape"], raw, each.get("data")))
            offset += size or 0
    except (KeyError, TypeError, AttributeError):
        raise ValueError("the response is not a V2 inference response: it has no list of outputs") from None
    if offset > len(body):
        raise ValueError(f"the response has {len(body)} bytes, its outputs need {offset}")
    return document, outputs


def flatten(data: Any) -> list[Any]:
    return [item for each in data for item in flatten(each)] if isinstance(data, list) else [data]


def pack_bytes(elements: Iterable[bytes]) -> bytes:
    """Return the memory of a BYTES tensor: each element after its length."""
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def unpack_bytes(raw: Memory) -> list[bytes]:
    elements, offset = list[bytes](), 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        elements.append(bytes(raw[offset + 4 : offset + 4 + length]))
        offset += 4 + length
    if offset != len(raw):
        raise ValueError(f"the last element of BYTES ends at {offset}, after its {len(raw)} bytes")
    return elements
