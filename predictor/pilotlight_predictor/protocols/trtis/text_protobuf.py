"""TRTIS messages as protobuf text and binary, from plain values and the tables below: responses, the request header.

Hand-written, since importing protobuf would cost more than encoding these small responses. Defaults are left out, as
in protobuf. Field numbers are those of `protos/trtis.proto`; where 0.11 changed the wire format there is a second
table. One table reads the request headers of both, since their fields have different names.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from pilotlight.wire.protobuf import FIXED32, VARINT, delimited, tag, varint
from pilotlight_predictor.repository.schema import DATA_TYPE, INT64, STRING, UINT32, UINT64, message
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
    kind: Kind
    shape: Literal["one", "many", "map"] = "one"
    number: int = 0


def enum(*names: str) -> Names:
    """Return an enum whose numbers begin with 0."""
    return Names({name: number for number, name in enumerate(names)})


def fields(**kinds: Kind | Field | None) -> Message:
    """Return a message whose field numbers begin with 1; None: a field that is never written."""
    typed = {name: kind if isinstance(kind, Field) else Field(kind) for name, kind in kinds.items() if kind is not None}
    numbers = {name: number for number, name in enumerate(kinds, 1)}
    return Message({name: field._replace(number=numbers[name]) for name, field in typed.items()})


def many(kind: Kind) -> Field:
    return Field(kind, "many")


def mapping(key: Kind, value: Kind) -> Field:
    return Field(fields(key=key, value=value)._replace(explicit=True), "map")


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
    output=read_many(message(name=STRING, byte_size=UINT64, cls=message(count=UINT32))), correlation_id=UINT64,
    id=UINT64, flags=UINT32,
)  # fmt: skip

CODES: Final = enum(
    "INVALID", "SUCCESS", "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED"
)
REQUEST_STATUS: Final = fields(code=CODES, msg="string", server_id="string", request_id="integer")

_CLASSES = fields(cls=many(fields(idx="integer", value="float", label="string")))


def _response_header(raw: Message) -> Message:
    output = fields(name="string", raw=raw, batch_classes=many(_CLASSES))
    return fields(
        model_name="string", model_version="integer", batch_size="integer", output=many(output), id="integer"
    )  # fmt: skip


RESPONSE_HEADER: Final = _response_header(fields(byte_size="integer"))
RESPONSE_HEADER_1_0: Final = _response_header(fields(dims=many("integer"), batch_byte_size="integer"))

_TYPES = enum(*DATA_TYPE.values)
_CONFIG = fields(
    name="string", platform="string",
    version_policy=fields(
        latest=fields(num_versions="integer"), all=fields(), specific=fields(versions=many("integer"))
    ),
    max_batch_size="integer",
    input=many(
        fields(
            name="string", data_type=_TYPES, format=enum("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"),
            dims=many("integer"),
        )
    ),
    output=many(fields(name="string", data_type=_TYPES, dims=many("integer"), label_filename="string")),
    instance_group=many(
        fields(
            name="string", count="integer", gpus=many("integer"),
            kind=enum("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
        )
    ),
    default_model_filename="string", cc_model_filenames=mapping("string", "string"), tags=mapping("string", "string"),
    dynamic_batching=fields(preferred_batch_size=many("integer"), max_queue_delay_microseconds="integer"),
)  # fmt: skip

_DURATION = fields(count="integer", total_time_ns="integer")
_STATS = fields(success=_DURATION, failed=_DURATION, compute=_DURATION, queue=_DURATION)
MODEL_STATES: Final = enum("MODEL_UNKNOWN", "MODEL_READY", "MODEL_UNAVAILABLE", "MODEL_LOADING", "MODEL_UNLOADING")
_VERSION = fields(
    ready_state=MODEL_STATES, infer_stats=mapping("integer", _STATS), model_execution_count="integer",
    model_inference_count="integer",
)  # fmt: skip
SERVER_STATES: Final = Names(
    {
        "SERVER_INVALID": 0, "SERVER_INITIALIZING": 1, "SERVER_READY": 2, "SERVER_EXITING": 3,
        "SERVER_FAILED_TO_INITIALIZE": 10,
    }
)  # fmt: skip
SERVER_STATUS: Final = fields(
    id="string", version="string", uptime_ns="integer",
    model_status=mapping("string", fields(config=_CONFIG, version_status=mapping("integer", _VERSION))),
    status_stats=None, profile_stats=None, ready_state=SERVER_STATES,
)  # fmt: skip
