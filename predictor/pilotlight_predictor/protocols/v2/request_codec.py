"""Decoder of V2 inference requests: JSON, JSON followed by binary tensors, or one raw tensor. Pure."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core import request_parameters
from pilotlight_predictor.core.request_parameters import REGION, FindRegion, no_shared_memory, read_region
from pilotlight_predictor.core.requests import InferRequest, Inputs, Parameters, RequestedOutput, SharedMemorySlice
from pilotlight_predictor.core.tensors import NUMPY_TYPES, Shape, TensorSpec, decode_raw, element_count
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.json_values import MAX_FIELDS, decode_values, explain, quote_nonfinite
from pilotlight_predictor.protocols.v2.request_templates import TemplateCache

RESERVED_PREFIX: Final = "triton_"
RESERVED: Final = frozenset({"headers"})
ELSEWHERE: Final = frozenset({"binary_data_size", REGION})  # parameters of inputs without JSON data
MAX_DIMS: Final = 64  # numpy's own limit
MAX_DIM: Final = (1 << 31) - 1  # beyond any body
_ABSENT: Final = msgspec.Raw()
_NO_BLOBS: Final = memoryview(b"")


_FEW: Final = msgspec.Meta(max_length=MAX_FIELDS)
_Parameters = Annotated[dict[str, Any], _FEW]
CheckInput = Callable[[str, str, Shape], None]  # name, datatype and shape; raises BadRequest


class WireInput(msgspec.Struct):
    name: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_DIM)], ...]
    datatype: str
    data: msgspec.Raw = _ABSENT
    parameters: _Parameters | None = None


class WireOutput(msgspec.Struct):
    name: str
    parameters: _Parameters | None = None


class WireRequest(msgspec.Struct):
    inputs: Annotated[list[WireInput], _FEW]
    id: str = ""
    parameters: _Parameters | None = None
    outputs: Annotated[list[WireOutput], _FEW] | None = None


class V1Request(msgspec.Struct):
    instances: msgspec.Raw


_decode = msgspec.json.Decoder(WireRequest).decode


def decode_request(
    model: str, version: int, body: Buffer, header_length: int | None, find: FindRegion = no_shared_memory,
    templates: TemplateCache | None = None, check: CheckInput | None = None,
) -> InferRequest:  # fmt: skip
    """Decode a body; `header_length` is Inference-Header-Content-Length, None if all of it is JSON.

    `find` returns the bytes of shared memory. `templates` learn the request. `check` compares an input with the model
    before its elements are read. Raise BadRequest.
    """
    header, blobs = (body, _NO_BLOBS) if header_length is None else _cut(body, header_length)
    wire, as_written = _decode_header(header)
    plain = header_length is None and as_written and len(wire.inputs) == 1 and not wire.inputs[0].parameters
    request = InferRequest(model, _inputs(model, wire.inputs, blobs, find, check), version, wire.id)
    if wire.outputs:
        outputs: dict[str, RequestedOutput] = {}
        for index, output in enumerate(wire.outputs):
            if output.name in outputs:
                raise BadRequest(f"outputs[{index}].name = '{output.name}' appears twice")
            outputs[output.name] = _output(f"outputs[{index}]", output, find)
        request.outputs = tuple(outputs.values())
    if wire.parameters:
        apply_parameters(request, wire.parameters)
    elif templates is not None and plain:  # later requests may differ only in the id and the numbers of one array
        templates.learn(body, wire.inputs[0].data, request)
    return request


def _cut(body: Buffer, header_length: int) -> tuple[memoryview, memoryview]:
    view = memoryview(body)
    if header_length > len(view):
        raise BadRequest(
            f"Inference-Header-Content-Length = {header_length}, must be at most the body's {len(view)} bytes:"
            " inference header size should be in range"
        )
    return view[:header_length], view[header_length:]


def decode_raw_request(model: str, version: int, body: Buffer, spec: TensorSpec) -> InferRequest:
    """Decode a body that is the raw bytes of the only input (header length 0); its size gives a variable dimension."""
    shape = spec.shape
    if spec.datatype == "BYTES":
        shape = tuple(1 if dim < 0 else dim for dim in shape)
        body = len(body).to_bytes(4, "little") + bytes(body)
    elif shape.count(-1) > 1:
        raise BadRequest(f"a raw request needs at most one variable dimension; input '{spec.name}' is {list(shape)}")
    elif -1 in shape:
        row = element_count(dim for dim in shape if dim > 0) * NUMPY_TYPES[spec.datatype].itemsize
        shape = tuple(len(body) // row if dim < 0 else dim for dim in shape)
    tensor = decode_raw(f"input '{spec.name}'", spec.datatype, shape, body)
    return InferRequest(model, {spec.name: tensor}, version, binary_output=True, batch_first=True)


def _decode_header(text: Buffer) -> tuple[WireRequest, bool]:
    """Decode the JSON; the flag is False if NaN or infinities, which JSON lacks, had to be quoted first."""
    try:
        return _decode(text), True
    except msgspec.ValidationError as error:
        hint = ""
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            msgspec.json.decode(text, type=V1Request)
            hint = "; this is a V1 body, V2 needs inputs: […]"
        raise BadRequest(f"the request does not fit V2 inference: {explain(error)}{hint}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not len(text):
            raise BadRequest("the body is empty, must be a JSON object with inputs: […]") from None
        quoted = quote_nonfinite(bytes(text))
        if quoted is None:
            raise BadRequest(f"the request is not valid JSON: {error}") from None
        return _decode_header(memoryview(quoted))[0], False
    except RecursionError:
        raise BadRequest("the request is nested too deep") from None


def _inputs(
    model: str, wires: list[WireInput], blobs: memoryview, find: FindRegion, check: CheckInput | None
) -> Inputs:
    inputs: Inputs = {}
    position = 0
    for wire in wires:
        if wire.name in inputs or wire.datatype not in NUMPY_TYPES or len(wire.shape) > MAX_DIMS:
            raise input_error(len(inputs), wire.name, wire.datatype, wire.shape, wire.name in inputs)
        shape = wire.shape
        if check is not None:
            check(wire.name, wire.datatype, shape)
        if wire.data is not _ABSENT:
            if wire.parameters and (conflict := wire.parameters.keys() & ELSEWHERE):
                raise BadRequest(f"input '{wire.name}' has both data and the parameter {min(conflict)}; send one")
            inputs[wire.name] = decode_values(f"inputs['{wire.name}']", wire.datatype, shape, wire.data)
        elif wire.parameters and REGION in wire.parameters:
            shared = read_region(f"inputs[{len(inputs)}]", wire.parameters)
            inputs[wire.name] = decode_raw(f"input '{wire.name}'", wire.datatype, shape, find(shared).toreadonly())
        else:
            size = (wire.parameters or {}).get("binary_data_size")
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                where = f"inputs[{len(inputs)}] ('{wire.name}')"
                if size is not None:
                    raise BadRequest(f"{where} needs data or a binary_data_size of 0 or more, not {size!r}")
                raise BadRequest(f"{where} has neither data nor a binary_data_size of 0 or more")
            if position + size > len(blobs):
                missing = position + size - len(blobs)
                raise BadRequest(f"unexpected size for input '{wire.name}', expecting {missing} additional bytes")
            blob = blobs[position : position + size]
            inputs[wire.name] = decode_raw(f"input '{wire.name}'", wire.datatype, shape, blob)
            position += size
    if position != len(blobs):
        extra = len(blobs) - position
        raise BadRequest(f"unexpected additional input data for model '{model}': {extra} bytes after the last tensor")
    return inputs


def input_error(index: int, name: str, datatype: str, shape: Shape, twice: bool) -> BadRequest:
    where = f"inputs[{index}]"
    if twice:
        return BadRequest(f"{where}.name = '{name}' appears twice")
    if datatype not in NUMPY_TYPES:
        return BadRequest(f"{where}.datatype = '{datatype}', must be one of {', '.join(NUMPY_TYPES)}")
    return BadRequest(f"{where}.shape has {len(shape)} dimensions, the limit is {MAX_DIMS}")


def _output(where: str, wire: WireOutput, find: FindRegion) -> RequestedOutput:
    parameters = wire.parameters
    if not parameters:
        return RequestedOutput(wire.name)
    binary = parameters.get("binary_data")
    if binary is not None and not isinstance(binary, bool):
        raise BadRequest(f"{where}.parameters.binary_data = {binary!r}, must be true or false")
    count, shared = output_parameters(where, parameters)
    return RequestedOutput(wire.name, binary, count, shared, find(shared) if shared else None)


def output_parameters(where: str, parameters: Parameters) -> tuple[int, SharedMemorySlice | None]:
    """Return the number of classes and the slice of shared memory, of which an output has one at most."""
    count = parameters.get("classification", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadRequest(f"{where}.parameters.classification = {count!r}, must be a number of classes, 0 or more")
    shared = read_region(where, parameters) if REGION in parameters else None
    if count and shared:
        raise BadRequest(f"{where}: classification does not support shared memory output; request one of them")
    return count, shared


def check_reserved(names: Iterable[str]) -> None:
    for name in names:
        if name in RESERVED or name.startswith(RESERVED_PREFIX):
            raise BadRequest(f"parameters.{name} is reserved; choose another name")


def apply_parameters(request: InferRequest, parameters: Parameters, *, reserved: bool = True) -> None:
    """Apply parameters that concern the server; all of them are passed on to the model. Raise BadRequest.

    `reserved`: names of the server are refused.
    """
    check_reserved(parameters if reserved else parameters.keys() & RESERVED)
    request.parameters = parameters
    binary = parameters.get("binary_data_output", False)
    if not isinstance(binary, bool):
        raise BadRequest(f"parameters.binary_data_output = {binary!r}, must be true or false")
    request.binary_output = binary
    request.priority = unsigned(parameters, "priority")
    request.timeout_us = unsigned(parameters, "timeout")
    if request_parameters.KEY in parameters:
        request.sequence = request_parameters.sequence_point(parameters)


def unsigned(parameters: Parameters, key: str) -> int:
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise BadRequest(f"parameters.{key} = {value!r}, must be an integer of 0 or more")
    return value
