"""TRTIS request: NV-InferRequest header and raw inputs → InferRequest. Pure.

0.7 to 0.10 send the bytes of one row (`byte_size`), 0.11 and later its shape (`dims`) or nothing. These fields identify
the generation of the client, which determines the format of the response.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pilotlight.wire.http1 import Buffer
from pilotlight.wire.messages import quoted
from pilotlight_predictor.core.requests import InferRequest, Parameters, RequestedOutput
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Shape, TensorSpec, decode_raw, element_count
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.protocols.trtis.text_protobuf import REQUEST_HEADER
from pilotlight_predictor.repository.pbtxt import document_from_message, parse_pbtxt

HEADER: Final = "NV-InferRequest"
SHORT: Final = 1 << 12  # characters of headers that are cached; clients repeat them
MAX_DIMS: Final = 63  # numpy's own limit, and the batch
START, END = 1, 2  # bits of `flags`


class InputHeader(NamedTuple):
    name: str
    byte_size: int | None
    dims: tuple[int, ...] | None
    batch_byte_size: int | None


class OutputHeader(NamedTuple):
    """One requested output. `classes` is 0 for the tensor itself, else the number of classes."""

    name: str
    byte_size: int | None
    classes: int


class Header(NamedTuple):
    """Decoded header; `old`: of the generation with `byte_size`."""

    batch_size: int
    inputs: tuple[InputHeader, ...]
    outputs: tuple[OutputHeader, ...]
    old: bool
    id: int
    parameters: Parameters


class Signature(NamedTuple):
    """Inputs and outputs of a model, with shapes without the batch dimension."""

    model: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    batched: bool


def signature(model: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batched: bool) -> Signature:
    def rows(specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
        return {spec.name: spec._replace(shape=spec.shape[1:]) if batched else spec for spec in specs}

    return Signature(model, rows(inputs), rows(outputs), batched)


def read_header(model: str, text: str) -> Header:
    """Parse a header; `text` has one character per byte, as in HTTP. Raise BadRequest."""
    try:
        return _known_header(text) if len(text) <= SHORT else _read(text)
    except LoadFailed as error:
        raise BadRequest(f"unable to parse request for model '{model}': {error}") from None


def _read(text: str) -> Header:
    try:
        text = text.encode("latin-1").decode()
    except UnicodeError:
        raise BadRequest(f"{HEADER} is not UTF-8 text") from None
    return make_header(document_from_message(parse_pbtxt(text, HEADER), REQUEST_HEADER).values)


_known_header = lru_cache(256)(_read)


def make_header(values: Mapping[str, Any]) -> Header:
    """Build a header from the fields that the client sent."""
    inputs = tuple(_input(item) for item in values.get("input", ()))
    outputs = tuple(_output(index, item) for index, item in enumerate(values.get("output", ())))
    _check_names("input", [item.name for item in inputs])
    _check_names("output", [item.name for item in outputs])
    sizes = [*(item.byte_size for item in inputs), *(item.byte_size for item in outputs)]
    old = any(size is not None for size in sizes)
    parameters: Parameters = {}
    if values.get("correlation_id"):
        flags = values.get("flags", 0)
        edges = {"sequence_start": bool(flags & START), "sequence_end": bool(flags & END)}
        parameters = {"sequence_id": values["correlation_id"], **edges}
    return Header(values.get("batch_size", 0), inputs, outputs, old, values.get("id", 0), parameters)


def _input(values: Mapping[str, Any]) -> InputHeader:
    dims = values.get("dims")
    if dims is not None and (len(dims) > MAX_DIMS or any(not 0 <= dim < 1 << 31 for dim in dims)):
        raise BadRequest(f"input '{values.get('name', '')}': dims must be at most {MAX_DIMS} sizes of 0 or more")
    shape = None if dims is None else tuple(dims)
    return InputHeader(values.get("name", ""), values.get("byte_size"), shape, values.get("batch_byte_size"))


def _output(index: int, values: Mapping[str, Any]) -> OutputHeader:
    classes = values["cls"].get("count", 0) if "cls" in values else 0
    if "cls" in values and classes < 1:
        raise BadRequest(f"output[{index}].cls.count = {classes}, must be 1 or more")
    return OutputHeader(values.get("name", ""), values.get("byte_size"), classes)


def _check_names(field: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise BadRequest(f"{field}[{index}].name = '{name}' appears twice")
        seen.add(name)


class InputLayout(NamedTuple):
    """One input of a request: its shape with the batch dimension, and its size in bytes."""

    spec: TensorSpec
    shape: Shape
    size: int


def decode_infer(header: Header, model: Signature, version: int, body: Buffer) -> InferRequest:
    """Decode a body with concatenated inputs."""
    layouts = _layouts(header, model)
    blobs, view, position = [], memoryview(body), 0
    for spec, _, size in layouts:
        if position + size > len(view):
            raise BadRequest(
                f"unexpected size for input '{spec.name}': {size} bytes are announced, {len(view) - position} remain"
            )
        blobs.append(view[position : position + size])
        position += size
    if position != len(view):
        extra = len(view) - position
        raise BadRequest(f"unexpected additional input data for model '{model.model}': {extra} bytes")
    return _request(header, model, version, layouts, blobs)


def decode_parts(header: Header, model: Signature, version: int, parts: Sequence[Buffer]) -> InferRequest:
    """Decode inputs that are sent one by one."""
    layouts = _layouts(header, model)
    if len(parts) != len(layouts):
        raise BadRequest(f"raw_input has {len(parts)} tensors, meta_data.input {len(layouts)}; must be one for each")
    for (spec, _, size), part in zip(layouts, parts, strict=True):
        if len(part) != size:
            raise BadRequest(f"unexpected size {len(part)} for inference input '{spec.name}', expecting {size}")
    return _request(header, model, version, layouts, parts)


def _layouts(header: Header, model: Signature) -> list[InputLayout]:
    rows = _rows(header, model)
    layouts = []
    for entry in header.inputs:
        spec = model.inputs.get(entry.name)
        if spec is None:
            known = quoted(model.inputs)
            raise BadRequest(
                f"unexpected inference input '{entry.name}' for model '{model.model}'; it takes {known or 'none'}"
            )
        shape, size = _layout(entry, spec, rows)
        layouts.append(InputLayout(spec, (rows, *shape) if model.batched else shape, size))
    return layouts


def _request(
    header: Header, model: Signature, version: int, layouts: Sequence[InputLayout], blobs: Sequence[Buffer]
) -> InferRequest:
    inputs = {
        spec.name: decode_raw(f"input '{spec.name}'", spec.datatype, shape, blob)
        for (spec, shape, _), blob in zip(layouts, blobs, strict=True)
    }
    for output in header.outputs:
        _check_output(output, model)
    outputs = tuple(RequestedOutput(output.name) for output in header.outputs)
    request_id = str(header.id) if header.id else ""
    return InferRequest(model.model, inputs, version, request_id, outputs, dict(header.parameters))


def _rows(header: Header, model: Signature) -> int:
    if model.batched and header.batch_size < 1:
        raise BadRequest(
            f"inference request batch-size must be >= 1 for models that support batching, as '{model.model}' does"
        )
    if not model.batched and header.batch_size > 1:
        raise BadRequest(f"inference request batch-size must be 1 for '{model.model}', which does not batch")
    return max(header.batch_size, 1)


def _layout(entry: InputHeader, spec: TensorSpec, rows: int) -> tuple[Shape, int]:
    """Return the shape of one row, and the bytes of all rows."""
    shape = spec.shape if entry.dims is None else entry.dims
    if spec.datatype == "BYTES":
        size = entry.batch_byte_size
        if size is None and entry.byte_size is not None:
            size = rows * entry.byte_size
        shape = _fixed(entry, spec, shape)
        if size is None:
            raise BadRequest(f"input '{entry.name}' is of strings: set its batch_byte_size in {HEADER}")
        return shape, size
    width = NUMPY_TYPES[spec.datatype].itemsize
    if shape.count(-1) == 1 and entry.byte_size is not None:
        row = element_count(dim for dim in shape if dim != -1) * width
        if row and entry.byte_size % row == 0:
            shape = tuple(entry.byte_size // row if dim == -1 else dim for dim in shape)
    shape = _fixed(entry, spec, shape)
    expected = element_count(shape) * width
    if entry.byte_size is not None and entry.byte_size != expected:
        raise BadRequest(
            f"unexpected size {entry.byte_size} for inference input '{entry.name}', a row {list(shape)} of"
            f" {spec.datatype} takes {expected}"
        )
    return shape, rows * expected


def _fixed(entry: InputHeader, spec: TensorSpec, shape: Shape) -> Shape:
    if -1 in shape:
        raise BadRequest(f"input '{entry.name}' has variable dimensions {list(spec.shape)}: set its dims in {HEADER}")
    return shape


def _check_output(output: OutputHeader, model: Signature) -> None:
    spec = model.outputs.get(output.name)
    if spec is None or output.byte_size is None:
        return  # unknown names are rejected with the model's own validation
    if spec.datatype == "BYTES":
        raise BadRequest(
            f"output '{output.name}' is of strings, whose size is not known in advance: leave byte_size out"
        )
    expected = element_count(spec.shape) * NUMPY_TYPES[spec.datatype].itemsize
    if -1 not in spec.shape and output.byte_size != expected:
        raise BadRequest(
            f"unexpected size {output.byte_size} for inference output '{output.name}', expecting {expected} for model"
            f" '{model.model}'"
        )
