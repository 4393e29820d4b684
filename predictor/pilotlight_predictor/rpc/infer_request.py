"""ModelInferRequest → InferRequest, without a copy of the tensors. Pure.

A client's requests differ in their ids and tensors, hardly in what stands around them. The message is cut into its id,
raw contents, which stay views of it, and its head; a head that was seen before is not read again: 10 µs instead of 90.
"""

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import NEWEST, InferRequest, Inputs, Parameters, RequestedOutput
from pilotlight_predictor.protocol.raw import decode_raw
from pilotlight_predictor.protocol.v2_request import MAX_DIM, MAX_DIMS, RESERVED, RESERVED_PREFIX
from pilotlight_predictor.rpc import wire
from pilotlight_predictor.rpc.contents import decode_contents
from pilotlight_predictor.tensors import NUMPY_TYPES, Shape

ID_FIELD: Final = 3
RAW_FIELD: Final = 7
APART: Final = frozenset(number << 3 | wire.BYTES for number in (ID_FIELD, RAW_FIELD))
LONGEST_REMEMBERED: Final = 2048  # bytes of a head
EMPTY_FINAL: Final = "triton_enable_empty_final_response"  # every answer here is final, so nothing follows it
_DOUBLE: Final = struct.Struct("<d")
_NO_CONTENTS: Final = memoryview(b"")


class WireInput(NamedTuple):
    name: str
    datatype: str
    shape: Shape
    contents: memoryview | None


class Head(NamedTuple):
    """All of a request but its id and raw contents. Shared by requests: nobody may change it."""

    model: str
    version: int
    parameters: Parameters
    inputs: tuple[WireInput, ...]
    outputs: tuple[RequestedOutput, ...]
    priority: int
    timeout_us: int


def decode_infer(message: bytes) -> InferRequest:
    """`binary_output` says whether the answer has raw contents too."""
    head_bytes, identity, blobs = _cut(message)
    remembered = blobs and len(head_bytes) <= LONGEST_REMEMBERED
    head = _known_head(head_bytes) if remembered else _read_head(head_bytes)
    inputs = _raw_inputs(head, blobs) if blobs else _typed_inputs(head)
    raw = bool(blobs) or head.parameters.get("binary_data_output") is True
    parameters = dict(head.parameters) if head.parameters else {}
    request = InferRequest(head.model, inputs, head.version, identity, head.outputs, parameters, raw)
    request.priority, request.timeout_us = head.priority, head.timeout_us
    return request


class Cut(NamedTuple):
    """A message in three parts: what repeats, its id, its raw contents."""

    head: bytes
    id: str
    blobs: list[memoryview]


def _cut(message: bytes) -> Cut:
    view, at, end = memoryview(message), 0, len(message)
    heads: list[memoryview] = []
    blobs: list[memoryview] = []
    identity, begin = "", 0
    while at < end:
        tag = message[at]
        if tag & 0x87 == wire.BYTES and tag not in APART and at + 1 < end and message[at + 1] < 0x80:
            at += 2 + message[at + 1]  # a short field: most of a head
            continue
        number, _, value, after = wire.read_field(view, at)
        if number in (ID_FIELD, RAW_FIELD):
            heads.append(view[begin:at])
            begin = after
            if number == RAW_FIELD:
                blobs.append(wire.payload(value, "raw_input_contents"))
            else:
                identity = wire.text(value, "id")
        at = after
    heads.append(view[begin:])
    return Cut(b"".join(heads), identity, blobs)


def _read_head(message: bytes) -> Head:
    model = version = ""
    parameters: Parameters = {}
    inputs: list[WireInput] = []
    outputs: dict[str, RequestedOutput] = {}
    for number, _, value in wire.fields(memoryview(message)):
        if number == 1:
            model = wire.text(value, "model_name")
        elif number == 2:
            version = wire.text(value, "model_version")
        elif number == 4:
            _read_parameter(parameters, value, "parameters")
        elif number == 5:
            inputs.append(_read_input(f"inputs[{len(inputs)}]", wire.payload(value, "inputs")))
        elif number == 6:
            _read_output(outputs, wire.payload(value, "outputs"))
    _check(inputs, parameters)
    priority, timeout_us = _unsigned(parameters, "priority"), _unsigned(parameters, "timeout")
    chosen = tuple(outputs.values())
    return Head(model, read_version(version), parameters, tuple(inputs), chosen, priority, timeout_us)


_known_head = lru_cache(512)(_read_head)


def read_version(text: str) -> int:
    if not text:
        return NEWEST
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise BadRequest(f"model_version = '{text[:50]}', must be a number, or empty for the newest")
    return int(text)


def _read_input(where: str, view: memoryview) -> WireInput:
    name = datatype = ""
    shape: list[int] = []
    contents: memoryview | None = None
    parameters: Parameters = {}
    for number, wire_type, value in wire.fields(view):
        if number == 1:
            name = wire.text(value, f"{where}.name")
        elif number == 2:
            datatype = wire.text(value, f"{where}.datatype")
        elif number == 3:
            shape += _dims(where, wire_type, value)
        elif number == 4:
            _read_parameter(parameters, value, f"{where}.parameters")
        elif number == 5:
            contents = wire.payload(value, f"{where}.contents")
    if "shared_memory_region" in parameters:
        raise BadRequest(f"{where}: shared memory is not enabled on this server; send contents or raw_input_contents")
    return WireInput(name, datatype, tuple(shape), contents)


def _dims(where: str, wire_type: int, value: int | memoryview) -> list[int]:
    if wire_type == wire.BYTES:
        dims: list[int] = wire.unpack_varints(wire.payload(value, where), f"{where}.shape").tolist()
    else:
        dims = [wire.number(value, f"{where}.shape")]
    for dim in dims:
        if dim > MAX_DIM:
            raise BadRequest(f"{where}.shape has {wire.signed(dim)}, must be of numbers from 0 to {MAX_DIM}")
    return dims


def _read_output(outputs: dict[str, RequestedOutput], view: memoryview) -> None:
    where, name, parameters = f"outputs[{len(outputs)}]", "", Parameters()
    for number, _, value in wire.fields(view):
        if number == 1:
            name = wire.text(value, f"{where}.name")
        elif number == 2:
            _read_parameter(parameters, value, f"{where}.parameters")
    if name in outputs:
        raise BadRequest(f"{where}.name = '{name}' appears twice")
    if "shared_memory_region" in parameters:
        raise BadRequest(f"{where}: shared memory is not enabled on this server")
    count = parameters.get("classification", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadRequest(f"{where}.parameters.classification = {count!r}, must be a number of classes, 0 or more")
    outputs[name] = RequestedOutput(name, None, count)


def _read_parameter(parameters: Parameters, entry: int | memoryview, where: str) -> None:
    key, value = "", None
    for number, _, field in wire.fields(wire.payload(entry, where)):
        if number == 1:
            key = wire.text(field, f"{where}.key")
        elif number == 2:
            value = _parameter(wire.payload(field, where), f"{where}.{key}")
    if value is None:
        raise BadRequest(f"{where}.{key} has no value: set one of bool, int64, string, double or uint64_param")
    parameters[key] = value


def _parameter(view: memoryview, where: str) -> Any:
    """The last of a oneof counts."""
    found: Any = None
    for number, wire_type, value in wire.fields(view):
        if number == 1:
            found = bool(wire.number(value, where))
        elif number == 2:
            found = wire.signed(wire.number(value, where))
        elif number == 3:
            found = wire.text(value, where)
        elif number == 4 and wire_type == wire.FIXED64:
            found = _DOUBLE.unpack(wire.payload(value, where))[0]
        elif number == 5:
            found = wire.number(value, where)
    return found


def _check(inputs: list[WireInput], parameters: Parameters) -> None:
    parameters.pop(EMPTY_FINAL, None)
    for key in parameters:
        if key in RESERVED or key.startswith(RESERVED_PREFIX):
            raise BadRequest(f"parameters.{key} is reserved; choose another name")
    names: set[str] = set()
    for index, each in enumerate(inputs):
        if each.name in names:
            raise BadRequest(f"inputs[{index}].name = '{each.name}' appears twice")
        if each.datatype not in NUMPY_TYPES:
            raise BadRequest(f"inputs[{index}].datatype = '{each.datatype}', must be one of {', '.join(NUMPY_TYPES)}")
        if len(each.shape) > MAX_DIMS:
            raise BadRequest(f"inputs[{index}].shape has {len(each.shape)} dimensions, at most {MAX_DIMS} are possible")
        names.add(each.name)


def _unsigned(parameters: Parameters, key: str) -> int:
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRequest(f"parameters.{key} = {value!r}, must be an integer of 0 or more")
    return value


def _raw_inputs(head: Head, blobs: list[memoryview]) -> Inputs:
    if len(blobs) != len(head.inputs):
        raise BadRequest(
            f"raw_input_contents has {len(blobs)} tensors, inputs has {len(head.inputs)}; must be one for each of them"
        )
    decoded: Inputs = {}
    for (name, datatype, shape, contents), blob in zip(head.inputs, blobs, strict=True):
        if contents:
            raise BadRequest(f"input '{name}' has contents beside raw_input_contents; send one of them")
        decoded[name] = decode_raw(f"input '{name}'", datatype, shape, blob)
    return decoded


def _typed_inputs(head: Head) -> Inputs:
    return {
        name: decode_contents(f"input '{name}'", datatype, shape, contents or _NO_CONTENTS)
        for name, datatype, shape, contents in head.inputs
    }


def peek_id(message: bytes) -> str:
    """The id of a request that could not be served, perhaps for what else is in it; empty where there is none."""
    try:
        return next(
            (wire.text(value, "id") for number, _, value in wire.fields(memoryview(message)) if number == 3), ""
        )
    except BadRequest:
        return ""
