"""Head of a ModelInferRequest: all of it but its id and raw contents. Pure.

Clients repeat heads, so the decoded form is immutable and cached.
"""

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import NEWEST, Parameters, RequestedOutput, SharedMemorySlice
from pilotlight_predictor.protocol.shared_places import REGION, read_region
from pilotlight_predictor.protocol.v2_request import MAX_DIM, MAX_DIMS, RESERVED, RESERVED_PREFIX
from pilotlight_predictor.rpc import wire
from pilotlight_predictor.tensors import NUMPY_TYPES, Shape, element_count

MAX_FIELDS: Final = 10_000  # of a message; no model needs more
EMPTY_FINAL: Final = "triton_enable_empty_final_response"  # in a stream: send a final response even if it is empty
_DOUBLE: Final = struct.Struct("<d")


class WireInput(NamedTuple):
    name: str
    datatype: str
    shape: Shape
    contents: memoryview | None
    place: SharedMemorySlice | None = None


class PlainInput(NamedTuple):
    """Numeric input whose raw contents need no decoding."""

    name: str
    datatype: str
    dtype: "np.dtype[Any]"
    shape: Shape
    size: int


class Head(NamedTuple):
    """All of a request but its id and raw contents. Shared by requests: must not be changed."""

    model: str
    version: int
    parameters: Parameters
    inputs: tuple[WireInput, ...]
    outputs: tuple[RequestedOutput, ...]
    priority: int
    timeout_us: int
    shared: bool  # inputs lie in shared memory
    placed: bool  # outputs are written to shared memory
    plain: tuple[PlainInput, ...]  # all inputs, if only the length of their raw contents must be checked


def read_head(message: bytes) -> Head:
    model = version = ""
    parameters: Parameters = {}
    inputs: list[WireInput] = []
    outputs: dict[str, RequestedOutput] = {}
    for number, _, value in wire.fields(memoryview(message), MAX_FIELDS):
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
    shared, placed = any(each.place for each in inputs), any(output.shared_memory for output in chosen)
    return Head(
        model, read_version(version), parameters, tuple(inputs), chosen, priority, timeout_us, shared, placed,
        _plain(inputs),
    )  # fmt: skip


known_head = lru_cache(512)(read_head)


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
    for number, wire_type, value in wire.fields(view, MAX_FIELDS):
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
    place = read_region(where, parameters) if REGION in parameters else None
    return WireInput(name, datatype, tuple(shape), contents, place)


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
    for number, _, value in wire.fields(view, MAX_FIELDS):
        if number == 1:
            name = wire.text(value, f"{where}.name")
        elif number == 2:
            _read_parameter(parameters, value, f"{where}.parameters")
    if name in outputs:
        raise BadRequest(f"{where}.name = '{name}' appears twice")
    place = read_region(where, parameters) if REGION in parameters else None
    count = parameters.get("classification", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadRequest(f"{where}.parameters.classification = {count!r}, must be a number of classes, 0 or more")
    if count and place:
        raise BadRequest(f"{where}: classification does not support shared memory output; ask for one of them")
    outputs[name] = RequestedOutput(name, None, count, place)


def _read_parameter(parameters: Parameters, entry: int | memoryview, where: str) -> None:
    key, value = "", None
    for number, _, field in wire.fields(wire.payload(entry, where), MAX_FIELDS):
        if number == 1:
            key = wire.text(field, f"{where}.key")
        elif number == 2:
            value = _parameter(wire.payload(field, where), f"{where}.{key}")
    if value is None:
        raise BadRequest(f"{where}.{key} has no value: set one of bool, int64, string, double or uint64_param")
    parameters[key] = value


def _parameter(view: memoryview, where: str) -> Any:
    """Return the value; of a oneof, the last one counts."""
    parameter: Any = None
    for number, wire_type, value in wire.fields(view, MAX_FIELDS):
        if number == 1:
            parameter = bool(wire.number(value, where))
        elif number == 2:
            parameter = wire.signed(wire.number(value, where))
        elif number == 3:
            parameter = wire.text(value, where)
        elif number == 4 and wire_type == wire.FIXED64:
            parameter = _DOUBLE.unpack(wire.payload(value, where))[0]
        elif number == 5:
            parameter = wire.number(value, where)
    return parameter


def _check(inputs: list[WireInput], parameters: Parameters) -> None:
    for key in parameters.keys() - {EMPTY_FINAL}:
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


def _plain(inputs: list[WireInput]) -> tuple[PlainInput, ...]:
    """Return the inputs as plain ones, or nothing if one of them needs more than a check of its length."""
    plain = []
    for name, datatype, shape, contents, place in inputs:
        dtype, count = NUMPY_TYPES[datatype], element_count(shape)
        if contents or place or dtype.kind not in "iuf" or not count:
            return ()
        plain.append(PlainInput(name, datatype, dtype, shape, count * dtype.itemsize))
    return tuple(plain)
