"""TRTIS messages as protobuf text and binary, from plain values and the tables below: responses, the request header.

Hand-written, since importing protobuf would cost more than encoding these small responses. Defaults are left out, as
in protobuf. Field numbers are those of `protos/trtis.proto`; where 0.11 changed the wire format there is a second
table. One table reads the request headers of both, since their fields have different names.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from pilotlight.wire.protobuf import FIXED32, VARINT, delimited, tag, varint
from pilotlight_predictor.repository.schema import INT64, STRING, UINT32, UINT64, message
from pilotlight_predictor.repository.schema import many as read_many

Values = Mapping[str, Any]
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "'": "\\'", "\\": "\\\\"}
_ESCAPES: Final = tuple(
    _NAMED.get(chr(byte), chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in range(256)
)


class Names(NamedTuple):
    """Enum: numbers by name."""

    numbers: Mapping[str, int]


class Message(NamedTuple):
    """Fields in the order of their numbers; `explicit` encodes defaults too, as in entries of a map."""

    fields: "Mapping[str, Field]"
    explicit: bool = False


Kind = Literal["string", "integer", "float", "bool"] | Names | Message


class Field(NamedTuple):
    number: int
    kind: Kind
    shape: Literal["one", "many", "map"] = "one"


def many(number: int, kind: Kind) -> Field:
    return Field(number, kind, "many")


def mapping(number: int, key: Kind, value: Kind) -> Field:
    return Field(number, Message({"key": Field(1, key), "value": Field(2, value)}, explicit=True), "map")


def write_text(values: Values, type_: Message, *, one_line: bool = False) -> str:
    """Encode as protobuf's DebugString, or on one line for a header."""
    lines = list(_lines(values, type_, ""))
    return " ".join(line.strip() for line in lines) if one_line else "".join(f"{line}\n" for line in lines)


def write_binary(values: Values, type_: Message) -> bytes:
    out = bytearray()
    for name, field in type_.fields.items():
        items = _items(values.get(name), field, type_.explicit)
        if field.shape == "many" and field.kind == "integer":
            packed = b"".join(map(varint, items))
            out += delimited(field.number, packed) if packed else b""
            continue
        for item in items:
            out += _tagged(field, item)
    return bytes(out)


def _items(value: Any, field: Field, explicit: bool) -> Iterable[Any]:
    if value is None:
        return ()
    if field.shape == "many":
        return value  # type: ignore[no-any-return]
    if field.shape == "map":
        return [{"key": key, "value": item} for key, item in value.items()]
    scalar = field.kind.numbers[value] if isinstance(field.kind, Names) else value
    return (value,) if explicit or isinstance(field.kind, Message) or scalar else ()


def _lines(values: Values, type_: Message, indent: str) -> Iterator[str]:
    for name, field in type_.fields.items():
        for item in _items(values.get(name), field, type_.explicit):
            if isinstance(field.kind, Message):
                yield f"{indent}{name} {{"
                yield from _lines(item, field.kind, indent + "  ")
                yield f"{indent}}}"
            else:
                word = ("true" if item else "false") if field.kind == "bool" else str(item)
                yield f"{indent}{name}: {quoted(item) if field.kind == 'string' else word}"


def quoted(text: str) -> str:
    """Return a quoted string in ASCII, since it may be sent in a header."""
    return '"' + "".join(_ESCAPES[byte] for byte in text.encode("utf-8", "replace")) + '"'


def _tagged(field: Field, value: Any) -> bytes:
    number, kind = field.number, field.kind
    if isinstance(kind, Message):
        return delimited(number, write_binary(value, kind))
    if kind == "string":
        return delimited(number, value.encode("utf-8", "replace"))
    if kind == "float":
        return tag(number, FIXED32) + struct.pack("<f", value)
    return tag(number, VARINT) + varint(kind.numbers[value] if isinstance(kind, Names) else int(value))


REQUEST_HEADER: Final = message(
    batch_size=UINT32,
    input=read_many(message(name=STRING, byte_size=UINT64, dims=read_many(INT64), batch_byte_size=UINT64)),
    output=read_many(message(name=STRING, byte_size=UINT64, cls=message(count=UINT32))),
    correlation_id=UINT64,
    id=UINT64,
    flags=UINT32,
)

CODES: Final = Names(
    {
        "INVALID": 0, "SUCCESS": 1, "UNKNOWN": 2, "INTERNAL": 3, "NOT_FOUND": 4, "INVALID_ARG": 5, "UNAVAILABLE": 6,
        "UNSUPPORTED": 7,
    }
)  # fmt: skip
REQUEST_STATUS: Final = Message(
    {
        "code": Field(1, CODES),
        "msg": Field(2, "string"),
        "server_id": Field(3, "string"),
        "request_id": Field(4, "integer"),
    }
)

_CLASS = Message({"idx": Field(1, "integer"), "value": Field(2, "float"), "label": Field(3, "string")})
_CLASSES = Message({"cls": many(1, _CLASS)})


def _response_header(raw: Message) -> Message:
    output = Message({"name": Field(1, "string"), "raw": Field(2, raw), "batch_classes": many(3, _CLASSES)})
    return Message(
        {
            "model_name": Field(1, "string"),
            "model_version": Field(2, "integer"),
            "batch_size": Field(3, "integer"),
            "output": many(4, output),
            "id": Field(5, "integer"),
        }
    )


RESPONSE_HEADER: Final = _response_header(Message({"byte_size": Field(1, "integer")}))
RESPONSE_HEADER_1_0: Final = _response_header(
    Message({"dims": many(1, "integer"), "batch_byte_size": Field(2, "integer")})
)

_TYPES = Names(
    {
        "TYPE_" + name: number
        for number, name in enumerate(
            (
                "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
                "FP32", "FP64", "STRING", "BF16",
            )
        )
    }
)  # fmt: skip
_FORMATS = Names({"FORMAT_NONE": 0, "FORMAT_NHWC": 1, "FORMAT_NCHW": 2})
_KINDS = Names({"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3})
_VERSION_POLICY = Message(
    {
        "latest": Field(1, Message({"num_versions": Field(1, "integer")})),
        "all": Field(2, Message({})),
        "specific": Field(3, Message({"versions": many(1, "integer")})),
    }
)
_INPUT = Message(
    {
        "name": Field(1, "string"),
        "data_type": Field(2, _TYPES),
        "format": Field(3, _FORMATS),
        "dims": many(4, "integer"),
    }
)
_OUTPUT = Message(
    {
        "name": Field(1, "string"),
        "data_type": Field(2, _TYPES),
        "dims": many(3, "integer"),
        "label_filename": Field(4, "string"),
    }
)
_GROUP = Message(
    {
        "name": Field(1, "string"),
        "count": Field(2, "integer"),
        "gpus": many(3, "integer"),
        "kind": Field(4, _KINDS),
    }
)
_BATCHING = Message(
    {"preferred_batch_size": many(1, "integer"), "max_queue_delay_microseconds": Field(2, "integer")}
)  # fmt: skip
_CONFIG = Message(
    {
        "name": Field(1, "string"),
        "platform": Field(2, "string"),
        "version_policy": Field(3, _VERSION_POLICY),
        "max_batch_size": Field(4, "integer"),
        "input": many(5, _INPUT),
        "output": many(6, _OUTPUT),
        "instance_group": many(7, _GROUP),
        "default_model_filename": Field(8, "string"),
        "cc_model_filenames": mapping(9, "string", "string"),
        "tags": mapping(10, "string", "string"),
        "dynamic_batching": Field(11, _BATCHING),
    }
)

_DURATION = Message({"count": Field(1, "integer"), "total_time_ns": Field(2, "integer")})
_STATS = Message({name: Field(n, _DURATION) for n, name in enumerate(("success", "failed", "compute", "queue"), 1)})
MODEL_STATES: Final = Names(
    {"MODEL_UNKNOWN": 0, "MODEL_READY": 1, "MODEL_UNAVAILABLE": 2, "MODEL_LOADING": 3, "MODEL_UNLOADING": 4}
)
_VERSION = Message(
    {
        "ready_state": Field(1, MODEL_STATES),
        "infer_stats": mapping(2, "integer", _STATS),
        "model_execution_count": Field(3, "integer"),
        "model_inference_count": Field(4, "integer"),
    }
)
_MODEL = Message({"config": Field(1, _CONFIG), "version_status": mapping(2, "integer", _VERSION)})
SERVER_STATES: Final = Names(
    {
        "SERVER_INVALID": 0, "SERVER_INITIALIZING": 1, "SERVER_READY": 2, "SERVER_EXITING": 3,
        "SERVER_FAILED_TO_INITIALIZE": 10,
    }
)  # fmt: skip
SERVER_STATUS: Final = Message(
    {
        "id": Field(1, "string"),
        "version": Field(2, "string"),
        "uptime_ns": Field(3, "integer"),
        "model_status": mapping(4, "string", _MODEL),
        "ready_state": Field(7, SERVER_STATES),
    }
)
