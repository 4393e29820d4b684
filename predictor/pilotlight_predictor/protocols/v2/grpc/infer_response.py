"""InferResponse → ModelInferResponse, and typed tensor contents (`fp32_contents`, `bytes_contents`, …) ↔ arrays. Pure.

Outputs have the form of the inputs, raw or typed, as with KServe and MLServer; always raw in Triton compatibility mode,
as with Triton. All outputs of a response have the same form. FP16 and BF16 have no typed field and are sent raw.
"""

import struct
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pilotlight.wire import protobuf
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.protobuf_codec import limited_fields, unpack_varints
from pilotlight_predictor.core.request_parameters import region_parameters
from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.core.tensors import (
    MAX_STRINGS,
    NUMPY_TYPES,
    Array,
    Shape,
    Tensor,
    check_strings,
    element_count,
    encode_raw,
    objects,
)
from pilotlight_predictor.errors import BadRequest

FIELDS: Final = {
    "BOOL": (1, "bool_contents"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), (2, "int_contents")),
    "INT64": (3, "int64_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), (4, "uint_contents")),
    "UINT64": (5, "uint64_contents"),
    "FP32": (6, "fp32_contents"),
    "FP64": (7, "fp64_contents"),
    "BYTES": (8, "bytes_contents"),
}
MAX_TYPED: Final = 1 << 24  # numbers in typed contents: of a byte each, they become eight
MAX_UNPACKED: Final = 1 << 16  # numbers that are not packed, as clients have done since proto3
_NAMES: Final = dict(FIELDS.values())
FINAL: Final = "triton_final_response"
_RAW_TAG: Final = protobuf.tag(6, protobuf.BYTES)
_DOUBLE: Final = struct.Struct("<d")
_SMALL: Final = 4096  # bytes that are copied faster than a memoryview is created


def decode_contents(where: str, datatype: str, shape: Shape, data: memoryview) -> Tensor:
    """Decode an InferTensorContents; `where` names the input in errors."""
    if datatype not in FIELDS:
        raise BadRequest(f"{where}: {datatype} has no typed contents; send it in raw_input_contents")
    number, name = FIELDS[datatype]
    count = element_count(shape)
    if datatype == "BYTES":
        check_strings(where, count)
    elif count > MAX_TYPED or len(data) > 12 * count + 16 * MAX_UNPACKED:
        most = f"the limit is {MAX_TYPED}; send more in raw_input_contents"
        raise BadRequest(f"{where}.contents.{name} does not fit shape {list(shape)} of {count} elements, or {most}")
    array = _concatenate(f"{where}.contents.{name}", datatype, _pieces(where, datatype, number, name, data))
    if array.size != count:
        raise BadRequest(f"{where}.contents.{name} has {array.size} elements, shape {list(shape)} takes {count}")
    try:
        return Tensor(datatype, array.reshape(shape))
    except ValueError:  # with a dimension of 0, numpy still checks the product of the others
        raise BadRequest(f"{where}: shape {list(shape)} is too large") from None


def _pieces(where: str, datatype: str, number: int, name: str, data: memoryview) -> list[tuple[int, Any]]:
    """Return wire type and value of each occurrence of the field: numbers may be packed, unpacked, or both."""
    pieces = []
    for field, wire_type, value in limited_fields(data, MAX_STRINGS if datatype == "BYTES" else MAX_UNPACKED):
        if field == number:
            pieces.append((wire_type, value))
        elif field in _NAMES:
            raise BadRequest(f"{where} has {_NAMES[field]}, must have {name} for datatype {datatype}")
    return pieces


def _concatenate(where: str, datatype: str, pieces: list[tuple[int, Any]]) -> Array:
    if datatype == "BYTES":
        return objects([bytes(protobuf.payload(value, where)) for _, value in pieces])
    arrays = [_numbers(where, datatype, wire_type, value) for wire_type, value in pieces]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, NUMPY_TYPES[datatype])


def _numbers(where: str, datatype: str, wire_type: int, value: int | memoryview) -> Array:
    dtype = NUMPY_TYPES[datatype]
    if dtype.kind == "f":
        data = protobuf.payload(value, where)
        if len(data) % dtype.itemsize or wire_type == (protobuf.FIXED32 if datatype == "FP64" else protobuf.FIXED64):
            raise protobuf.MalformedMessage(f"{where} ends within a number")
        return np.frombuffer(data, dtype)
    if wire_type == protobuf.BYTES:
        wide = unpack_varints(protobuf.payload(value, where), where)
    else:
        wide = np.array([protobuf.number(value, where)], np.uint64)
    return _narrow(where, datatype, wide)


def _narrow(where: str, datatype: str, wide: Array) -> Array:
    dtype = NUMPY_TYPES[datatype]
    if datatype == "BOOL":
        return wide.astype(np.bool_)
    wide = wide.view(np.int64) if dtype.kind == "i" else wide
    if wide.dtype == dtype:
        return wide
    narrow = wide.astype(dtype)
    if not np.array_equal(narrow, wide):
        raise BadRequest(f"{where} has a number that does not fit {datatype}")
    return narrow


def encode_contents(tensor: Tensor) -> bytes:
    """Encode an InferTensorContents; the datatype must be one of FIELDS."""
    datatype, array = tensor
    number, _ = FIELDS[datatype]
    if datatype == "BYTES":
        return b"".join(protobuf.delimited(number, item) for item in array.ravel())
    dtype = NUMPY_TYPES[datatype]
    flat = np.ascontiguousarray(array, dtype).reshape(-1)
    if dtype.kind in "fb":
        packed = flat.tobytes()
    else:
        parts = (flat[start : start + MAX_UNPACKED].tolist() for start in range(0, flat.size, MAX_UNPACKED))
        packed = b"".join([b"".join(map(protobuf.varint, part)) for part in parts])
    return protobuf.delimited(number, packed) if packed else b""


def encode_infer(response: InferResponse, raw: bool) -> list[Buffer]:
    """Return the message in pieces."""
    pieces: list[Buffer] = [_start(response.model, response.version)]
    if response.id:
        pieces.append(protobuf.delimited(3, response.id.encode()))
    if response.parameters:
        pieces.extend(_parameter(key, value) for key, value in response.parameters.items())
    if response.shared_outputs:
        return pieces + _shared_memory_outputs(response)
    tensors = response.outputs.items()
    if not raw and all(datatype in FIELDS for _, (datatype, _) in tensors):
        for name, tensor in tensors:
            head = _output(name, tensor.datatype, tensor.array.shape)
            pieces.append(protobuf.delimited(5, head + protobuf.delimited(5, encode_contents(tensor))))
        return pieces
    raws: list[Buffer] = []
    for name, tensor in tensors:
        datatype, array = tensor
        pieces.append(_raw_output(name, datatype, array.shape))
        small = array.nbytes <= _SMALL and array.dtype == NUMPY_TYPES[datatype] and datatype != "BYTES"
        blob = array.tobytes() if small else encode_raw(tensor)
        raws += (_raw_start(len(blob)), blob)
    return pieces + raws


def _shared_memory_outputs(response: InferResponse) -> list[Buffer]:
    """Encode outputs of which some are in shared memory: those have their region as parameters, and empty contents."""
    heads: list[Buffer] = []
    raws: list[Buffer] = []
    for name, tensor in response.outputs.items():
        place = response.shared_outputs.get(name)
        head = _output(name, tensor.datatype, tensor.array.shape)
        parameters = region_parameters(place).items() if place else ()
        heads.append(protobuf.delimited(5, head + b"".join(_parameter(key, value) for key, value in parameters)))
        blob = b"" if place else encode_raw(tensor)
        raws += (_RAW_TAG, protobuf.varint(len(blob)), blob)
    return heads + raws


def encode_streamed(pieces: list[Buffer]) -> list[Buffer]:
    """Return a ModelStreamInferResponse around the pieces of a ModelInferResponse."""
    return [protobuf.tag(2, protobuf.BYTES), protobuf.varint(sum(map(len, pieces))), *pieces]


def encode_stream_error(message: str, identity: str) -> bytes:
    """Return a ModelStreamInferResponse with an error and the id of the failed request."""
    response = protobuf.delimited(3, identity.encode()) if identity else b""
    return protobuf.delimited(1, message.encode("utf-8", "replace")) + protobuf.delimited(2, response)


@lru_cache(1024)
def _start(model: str, version: int) -> bytes:
    return protobuf.delimited(1, model.encode()) + protobuf.delimited(2, str(version).encode())


@lru_cache(1024)
def _raw_output(name: str, datatype: str, shape: Shape) -> bytes:
    return protobuf.delimited(5, _output(name, datatype, shape))


@lru_cache(1024)
def _raw_start(length: int) -> bytes:
    return _RAW_TAG + protobuf.varint(length)


def _output(name: str, datatype: str, shape: Shape) -> bytes:
    dims = protobuf.delimited(3, b"".join(map(protobuf.varint, shape))) if shape else b""
    return protobuf.delimited(1, name.encode()) + protobuf.delimited(2, datatype.encode()) + dims


def _parameter(key: str, value: Any) -> bytes:
    return protobuf.delimited(4, protobuf.delimited(1, key.encode()) + protobuf.delimited(2, _value(value)))


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return protobuf.tag(1, protobuf.VARINT) + protobuf.varint(value)
    if isinstance(value, int):
        return protobuf.tag(2 if value < 1 << 63 else 5, protobuf.VARINT) + protobuf.varint(value)
    if isinstance(value, float):
        return protobuf.tag(4, protobuf.FIXED64) + _DOUBLE.pack(value)
    return protobuf.delimited(3, str(value).encode())
