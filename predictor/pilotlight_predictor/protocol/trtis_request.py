"""The NV-InferRequest header and the raw bytes behind it → InferRequest. Pure.

0.7 to 0.10 give the bytes of one row (`byte_size`), 0.11 and later the shape of a row (`dims`) or nothing. Which of
them a client speaks is told by these names, and it is answered in kind.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest, LoadFailed
from pilotlight_predictor.inference import InferRequest, Inputs, Parameters, RequestedOutput
from pilotlight_predictor.protocol.raw import decode_raw
from pilotlight_predictor.protocol.trtis_schema import REQUEST_HEADER
from pilotlight_predictor.repository.pbtxt import parse_pbtxt
from pilotlight_predictor.repository.pbtxt_document import document_from_message
from pilotlight_predictor.tensors import NUMPY_TYPES, Shape, TensorSpec, element_count

HEADER: Final = "NV-InferRequest"
SHORT: Final = 1 << 12  # a client repeats its header; longer ones are read anew, or they would fill the memory
MAX_DIMS: Final = 63  # numpy's own limit, and the batch
START, END = 1, 2  # bits of `flags`


class AskedInput(NamedTuple):
    name: str
    byte_size: int | None
    dims: tuple[int, ...] | None
    batch_byte_size: int | None


class AskedOutput(NamedTuple):
    """`classes` 0 asks for the tensor itself."""

    name: str
    byte_size: int | None
    classes: int


class Header(NamedTuple):
    """`old`: of the generation that gives `byte_size`."""

    batch_size: int
    inputs: tuple[AskedInput, ...]
    outputs: tuple[AskedOutput, ...]
    old: bool
    id: int
    parameters: Parameters


class Signature(NamedTuple):
    """What the codec must know of a model; shapes leave the batch dimension out where the model has one."""

    model: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    batched: bool


def signature(model: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batched: bool) -> Signature:
    def rows(specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
        return {spec.name: spec._replace(shape=spec.shape[1:]) if batched else spec for spec in specs}

    return Signature(model, rows(inputs), rows(outputs), batched)


def read_header(model: str, text: str) -> Header:
    """`text` as HTTP carries it: one character a byte."""
    try:
        return _read_known(text) if len(text) <= SHORT else _read(text)
    except LoadFailed as error:
        raise BadRequest(f"unable to parse request for model '{model}': {error}") from None


@lru_cache(256)
def _read_known(text: str) -> Header:
    return _read(text)


def _read(text: str) -> Header:
    try:
        text = text.encode("latin-1").decode()
    except UnicodeError:
        raise BadRequest(f"{HEADER} is not UTF-8 text") from None
    return header_of(document_from_message(parse_pbtxt(text, HEADER), REQUEST_HEADER).values)


def header_of(values: Mapping[str, Any]) -> Header:
    """From fields by name; those that the client left out are not among them."""
    inputs = tuple(_input(item) for item in values.get("input", ()))
    outputs = tuple(_output(index, item) for index, item in enumerate(values.get("output", ())))
    _check_names("input", [item.name for item in inputs])
    _check_names("output", [item.name for item in outputs])
    sizes = [*(item.byte_size for item in inputs), *(item.byte_size for item in outputs)]
    old = any(size is not None for size in sizes)
    return Header(values.get("batch_size", 0), inputs, outputs, old, values.get("id", 0), _sequence(values))


def _input(values: Mapping[str, Any]) -> AskedInput:
    dims = values.get("dims")
    if dims is not None and (len(dims) > MAX_DIMS or any(not 0 <= dim < 1 << 31 for dim in dims)):
        raise BadRequest(f"input '{values.get('name', '')}': dims must be at most {MAX_DIMS} sizes of 0 or more")
    return AskedInput(
        values.get("name", ""),
        values.get("byte_size"),
        None if dims is None else tuple(dims),
        values.get("batch_byte_size"),
    )


def _output(index: int, values: Mapping[str, Any]) -> AskedOutput:
    classes = values["cls"].get("count", 0) if "cls" in values else 0
    if "cls" in values and classes < 1:
        raise BadRequest(f"output[{index}].cls.count = {classes}, must be 1 or more")
    return AskedOutput(values.get("name", ""), values.get("byte_size"), classes)


def _check_names(field: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadRequest(f"{field}[{index}].name = '{name}' appears twice")


def _sequence(values: Mapping[str, Any]) -> Parameters:
    if not values.get("correlation_id"):
        return {}
    flags = values.get("flags", 0)
    edges = {"sequence_start": bool(flags & START), "sequence_end": bool(flags & END)}
    return {"sequence_id": values["correlation_id"], **edges}


class Measured(NamedTuple):
    """One input of a request: its whole shape, and its bytes."""

    spec: TensorSpec
    shape: Shape
    size: int


def decode_infer(header: Header, model: Signature, version: int, body: Buffer) -> InferRequest:
    """`body` has the inputs one after the other."""
    measured = _measured(header, model)
    blobs, view, position = [], memoryview(body), 0
    for spec, _, size in measured:
        if position + size > len(view):
            raise BadRequest(
                f"unexpected size for input '{spec.name}': {size} bytes are announced, {len(view) - position} are left"
            )
        blobs.append(view[position : position + size])
        position += size
    if position != len(view):
        extra = len(view) - position
        raise BadRequest(f"unexpected additional input data for model '{model.model}': {extra} bytes")
    return _request(header, model, version, _tensors(measured, blobs))


def decode_parts(header: Header, model: Signature, version: int, parts: Sequence[Buffer]) -> InferRequest:
    """`parts` are the inputs, one each."""
    measured = _measured(header, model)
    if len(parts) != len(measured):
        raise BadRequest(f"raw_input has {len(parts)} tensors, meta_data.input {len(measured)}; must be one for each")
    for (spec, _, size), part in zip(measured, parts, strict=True):
        if len(part) != size:
            raise BadRequest(f"unexpected size {len(part)} for inference input '{spec.name}', expecting {size}")
    return _request(header, model, version, _tensors(measured, parts))


def _measured(header: Header, model: Signature) -> list[Measured]:
    rows = _rows(header, model)
    measured = []
    for asked in header.inputs:
        spec = model.inputs.get(asked.name)
        if spec is None:
            known = ", ".join(f"'{name}'" for name in model.inputs)
            raise BadRequest(
                f"unexpected inference input '{asked.name}' for model '{model.model}'; it takes {known or 'none'}"
            )
        shape, size = _measure(asked, spec, rows)
        measured.append(Measured(spec, (rows, *shape) if model.batched else shape, size))
    return measured


def _tensors(measured: Sequence[Measured], blobs: Sequence[Buffer]) -> Inputs:
    return {
        spec.name: decode_raw(f"input '{spec.name}'", spec.datatype, shape, blob)
        for (spec, shape, _), blob in zip(measured, blobs, strict=True)
    }


def _request(header: Header, model: Signature, version: int, inputs: Inputs) -> InferRequest:
    for asked in header.outputs:
        _check_output(asked, model)
    outputs = tuple(RequestedOutput(asked.name) for asked in header.outputs)
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


def _measure(asked: AskedInput, spec: TensorSpec, rows: int) -> tuple[Shape, int]:
    """The shape of one row, and the bytes of all of them."""
    shape = spec.shape if asked.dims is None else asked.dims
    if spec.datatype == "BYTES":
        return _fixed(asked, spec, shape), _size_of_strings(asked, rows)
    width = NUMPY_TYPES[spec.datatype].itemsize
    if shape.count(-1) == 1 and asked.byte_size is not None:
        row = element_count(dim for dim in shape if dim != -1) * width
        if row and asked.byte_size % row == 0:
            shape = tuple(asked.byte_size // row if dim == -1 else dim for dim in shape)
    shape = _fixed(asked, spec, shape)
    expected = element_count(shape) * width
    if asked.byte_size is not None and asked.byte_size != expected:
        raise BadRequest(
            f"unexpected size {asked.byte_size} for inference input '{asked.name}', a row {list(shape)} of"
            f" {spec.datatype} takes {expected}"
        )
    return shape, rows * expected


def _fixed(asked: AskedInput, spec: TensorSpec, shape: Shape) -> Shape:
    if -1 in shape:
        raise BadRequest(f"input '{asked.name}' has variable dimensions {list(spec.shape)}: say its dims in {HEADER}")
    return shape


def _size_of_strings(asked: AskedInput, rows: int) -> int:
    if asked.batch_byte_size is not None:
        return asked.batch_byte_size
    if asked.byte_size is not None:
        return rows * asked.byte_size
    raise BadRequest(f"input '{asked.name}' is of strings: say its batch_byte_size in {HEADER}")


def _check_output(asked: AskedOutput, model: Signature) -> None:
    spec = model.outputs.get(asked.name)
    if spec is None or asked.byte_size is None:
        return  # an unknown name is for the model's own check
    if spec.datatype == "BYTES":
        raise BadRequest(f"output '{asked.name}' is of strings, whose size nobody knows before: leave byte_size out")
    expected = element_count(spec.shape) * NUMPY_TYPES[spec.datatype].itemsize
    if -1 not in spec.shape and asked.byte_size != expected:
        raise BadRequest(
            f"unexpected size {asked.byte_size} for inference output '{asked.name}', expecting {expected} for model"
            f" '{model.model}'"
        )
