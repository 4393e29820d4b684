"""InferResponse → ModelInferResponse. Pure.

Outputs have the form of the inputs, raw or typed, as with KServe and MLServer; always raw in Triton compatibility mode,
as with Triton. All outputs of a response have the same form.
"""

import struct
from functools import lru_cache
from typing import Any, Final

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.protocol.raw import encode_raw
from pilotlight_predictor.protocol.shared_places import region_parameters
from pilotlight_predictor.rpc import wire
from pilotlight_predictor.rpc.contents import FIELDS, encode_contents
from pilotlight_predictor.tensors import NUMPY_TYPES, Shape

FINAL: Final = "triton_final_response"
_RAW_TAG: Final = wire.tag(6, wire.BYTES)
_DOUBLE: Final = struct.Struct("<d")
_SMALL: Final = 4096  # bytes that are copied faster than a memoryview is created


def encode_infer(response: InferResponse, raw: bool) -> list[Buffer]:
    """Return the message in pieces."""
    pieces: list[Buffer] = [_start(response.model, response.version)]
    if response.id:
        pieces.append(wire.delimited(3, response.id.encode()))
    if response.parameters:
        pieces.extend(_parameter(key, value) for key, value in response.parameters.items())
    if response.shared_outputs:
        return pieces + _shared_memory_outputs(response)
    tensors = response.outputs.items()
    if not raw and all(datatype in FIELDS for _, (datatype, _) in tensors):
        for name, tensor in tensors:
            head = _output(name, tensor.datatype, tensor.array.shape)
            pieces.append(wire.delimited(5, head + wire.delimited(5, encode_contents(tensor))))
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
        heads.append(wire.delimited(5, head + b"".join(_parameter(key, value) for key, value in parameters)))
        blob = b"" if place else encode_raw(tensor)
        raws += (_RAW_TAG, wire.varint(len(blob)), blob)
    return heads + raws


def encode_streamed(pieces: list[Buffer]) -> list[Buffer]:
    """Return a ModelStreamInferResponse around the pieces of a ModelInferResponse."""
    return [wire.tag(2, wire.BYTES), wire.varint(sum(map(len, pieces))), *pieces]


def encode_stream_error(message: str, identity: str) -> bytes:
    """Return a ModelStreamInferResponse with an error and the id of the failed request."""
    response = wire.delimited(3, identity.encode()) if identity else b""
    return wire.delimited(1, message.encode("utf-8", "replace")) + wire.delimited(2, response)


@lru_cache(1024)
def _start(model: str, version: int) -> bytes:
    return wire.delimited(1, model.encode()) + wire.delimited(2, str(version).encode())


@lru_cache(1024)
def _raw_output(name: str, datatype: str, shape: Shape) -> bytes:
    return wire.delimited(5, _output(name, datatype, shape))


@lru_cache(1024)
def _raw_start(length: int) -> bytes:
    return _RAW_TAG + wire.varint(length)


def _output(name: str, datatype: str, shape: Shape) -> bytes:
    dims = wire.delimited(3, b"".join(map(wire.varint, shape))) if shape else b""
    return wire.delimited(1, name.encode()) + wire.delimited(2, datatype.encode()) + dims


def _parameter(key: str, value: Any) -> bytes:
    return wire.delimited(4, wire.delimited(1, key.encode()) + wire.delimited(2, _value(value)))


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return wire.tag(1, wire.VARINT) + wire.varint(value)
    if isinstance(value, int):
        return wire.tag(2 if value < 1 << 63 else 5, wire.VARINT) + wire.varint(value)
    if isinstance(value, float):
        return wire.tag(4, wire.FIXED64) + _DOUBLE.pack(value)
    return wire.delimited(3, str(value).encode())
