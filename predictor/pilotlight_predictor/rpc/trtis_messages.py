"""TRTIS protocol over gRPC: decode its InferRequest, encode its responses. Pure.

All generations have the same field numbers with different wire types: the version is text before 0.9 and a number
since; field 2 of an input is a byte size before 0.11 and packed dims since.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.inference import NEWEST
from pilotlight_predictor.protocol.trtis_request import Header, make_header
from pilotlight_predictor.protocol.trtis_schema import (
    REQUEST_STATUS,
    RESPONSE_HEADER,
    RESPONSE_HEADER_1_0,
    SERVER_STATUS,
)
from pilotlight_predictor.protocol.trtis_wire import Field, Message, Values, write_binary
from pilotlight_predictor.rpc import wire
from pilotlight_predictor.rpc.infer_head import read_version

STATUS_RESPONSE = Message({"request_status": Field(1, REQUEST_STATUS), "server_status": Field(2, SERVER_STATUS)})
HEALTH_RESPONSE = Message({"request_status": Field(1, REQUEST_STATUS), "health": Field(2, "bool")})
ONLY_STATUS = Message({"request_status": Field(1, REQUEST_STATUS)})  # of profile responses and of errors


class InferMessage(NamedTuple):
    model: str
    version: int
    header: Header
    parts: list[memoryview]


def read_text(message: Buffer, name: str) -> str:
    """Return field 1, the only one of requests other than inferences."""
    text = ""
    for number, _, value in wire.fields(memoryview(message)):
        if number == 1:
            text = wire.text(value, name)
    return text


def read_infer(message: Buffer) -> InferMessage:
    model, version, header = "", NEWEST, memoryview(b"")
    parts: list[memoryview] = []
    for number, _, value in wire.fields(memoryview(message)):
        if number == 1:
            model = wire.text(value, "model_name")
        elif number == 2:
            version = _version(value)
        elif number == 3:
            header = wire.payload(value, "meta_data")
        elif number == 4:
            parts.append(wire.payload(value, "raw_input"))
    return InferMessage(model, version, _header(header), parts)


def _version(value: int | memoryview) -> int:
    """Return the version; -1 is the newest in every generation."""
    if isinstance(value, int):
        version = wire.signed(value)
        if version < NEWEST:
            raise BadRequest(f"version = {version}, must be a number of 0 or more, or -1 for the newest")
        return version
    text = wire.text(value, "version")
    return NEWEST if text == "-1" else read_version(text)


def _header(view: memoryview) -> Header:
    values: dict[str, Any] = {"input": [], "output": []}
    names = {1: "batch_size", 4: "correlation_id", 5: "id", 6: "flags"}
    for number, _, value in wire.fields(view):
        if number == 2:
            values["input"].append(_input(wire.payload(value, "input")))
        elif number == 3:
            values["output"].append(_output(wire.payload(value, "output")))
        elif number in names:
            values[names[number]] = wire.number(value, names[number])
    return make_header(values)


def _input(view: memoryview) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, _, value in wire.fields(view):
        if number == 1:
            values["name"] = wire.text(value, "input.name")
        elif number == 2 and isinstance(value, int):
            values["byte_size"] = value
        elif number == 2:
            dims = wire.unpack_varints(wire.payload(value, "input.dims"), "input.dims")
            values["dims"] = [wire.signed(dim) for dim in dims.tolist()]
        elif number == 3:
            values["batch_byte_size"] = wire.number(value, "input.batch_byte_size")
    return values


def _output(view: memoryview) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, _, value in wire.fields(view):
        if number == 1:
            values["name"] = wire.text(value, "output.name")
        elif number == 2:
            values["byte_size"] = wire.number(value, "output.byte_size")
        elif number == 3:
            values["cls"] = _count(wire.payload(value, "output.cls"))
    return values


def _count(view: memoryview) -> dict[str, int]:
    counts = [wire.number(value, "output.cls.count") for number, _, value in wire.fields(view) if number == 1]
    return {"count": counts[-1]} if counts else {}


def write_infer(header: Header, status: Values, values: Values, blobs: Sequence[Buffer]) -> bytes:
    """Encode an InferResponse; `raw_output` has an entry for each output, empty for classifications."""
    table = RESPONSE_HEADER if header.old else RESPONSE_HEADER_1_0
    pieces: list[Buffer] = [
        wire.delimited(1, write_binary(status, REQUEST_STATUS)),
        wire.delimited(2, write_binary(values, table)),
    ]
    raw = iter(blobs)
    for output in values["output"]:
        blob = next(raw) if "raw" in output else b""
        pieces += (wire.tag(3, wire.BYTES), wire.varint(len(blob)), blob)
    return b"".join(pieces)
