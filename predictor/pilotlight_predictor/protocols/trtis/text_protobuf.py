"""TRTIS messages as protobuf text and binary, from plain values and the tables below: responses, the request header.

Hand-written, since importing protobuf would cost more than encoding these small responses. Defaults are left out, as
in protobuf. Fields are in the order of their numbers in `protos/trtis.proto`; where 0.11 changed the wire format there
is a second table. One table reads the request headers of both, since their fields have different names.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pilotlight.wire.protobuf import FIXED32, VARINT, delimited, tag, varint
from pilotlight_predictor.repository.schema import (
    BOOL,
    DATA_TYPE,
    FLOAT,
    INT64,
    STRING,
    UINT32,
    UINT64,
    EnumType,
    FieldType,
    MessageType,
    many,
    mapping,
    message,
)

Values = Mapping[str, Any]
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "'": "\\'", "\\": "\\\\"}
_ESCAPES: Final = tuple(
    _NAMED.get(chr(byte), chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in range(256)
)


def write_text(values: Values, type_: MessageType, *, one_line: bool = False) -> str:
    """Encode as protobuf's DebugString, or on one line for a header."""
    lines = list(_lines(values, type_, ""))
    return " ".join(line.strip() for line in lines) if one_line else "".join(f"{line}\n" for line in lines)


def write_binary(values: Values, type_: MessageType, explicit: bool = False) -> bytes:
    """Encode a message; `explicit`: with its defaults, as an entry of a map."""
    out = bytearray()
    for number, (name, field) in enumerate(type_.fields.items(), 1):
        if (value := values.get(name)) is None:
            continue
        items = _items(value, field, explicit)
        if field.shape == "many" and field.type is INT64:
            packed = b"".join(map(varint, items))
            out += delimited(number, packed) if packed else b""
            continue
        for item in items:
            out += _tagged(number, field, item)
    return bytes(out)


def _items(value: Any, field: FieldType, explicit: bool) -> Iterable[Any]:
    if field.shape == "many":
        return value  # type: ignore[no-any-return]
    if field.shape == "map":
        return [{"key": key, "value": item} for key, item in value.items()]
    scalar = field.type.values.index(value) if isinstance(field.type, EnumType) else value
    return (value,) if explicit or isinstance(field.type, MessageType) or scalar else ()


def _message(field: FieldType) -> MessageType | None:
    """Return the type of a field of messages: its own, or that of the entries of a map."""
    if field.key is not None:
        return message(key=field.key, value=field.type)
    return field.type if isinstance(field.type, MessageType) else None


def _lines(values: Values, type_: MessageType, indent: str, explicit: bool = False) -> Iterator[str]:
    for name, field in type_.fields.items():
        if (value := values.get(name)) is None:
            continue
        nested = _message(field)
        for item in _items(value, field, explicit):
            if nested is not None:
                yield f"{indent}{name} {{"
                yield from _lines(item, nested, indent + "  ", explicit=field.shape == "map")
                yield f"{indent}}}"
            else:
                word = ("true" if item else "false") if field.type is BOOL else str(item)
                yield f"{indent}{name}: {quoted(item) if field.type is STRING else word}"


def quoted(text: str) -> str:
    """Return a quoted string in ASCII, since it may be sent in a header."""
    return '"' + "".join(_ESCAPES[byte] for byte in text.encode("utf-8", "replace")) + '"'


def _tagged(number: int, field: FieldType, value: Any) -> bytes:
    if (nested := _message(field)) is not None:
        return delimited(number, write_binary(value, nested, explicit=field.shape == "map"))
    if field.type is STRING:
        return delimited(number, value.encode("utf-8", "replace"))
    if field.type is FLOAT:
        return tag(number, FIXED32) + struct.pack("<f", value)
    integer = field.type.values.index(value) if isinstance(field.type, EnumType) else int(value)
    return tag(number, VARINT) + varint(integer)


REQUEST_HEADER: Final = message(
    batch_size=UINT32,
    input=many(message(name=STRING, byte_size=UINT64, dims=many(INT64), batch_byte_size=UINT64)),
    output=many(message(name=STRING, byte_size=UINT64, cls=message(count=UINT32))), correlation_id=UINT64,
    id=UINT64, flags=UINT32,
)  # fmt: skip

CODES: Final = EnumType(
    ("INVALID", "SUCCESS", "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED")
)
REQUEST_STATUS: Final = message(code=CODES, msg=STRING, server_id=STRING, request_id=INT64)

_CLASSES = message(cls=many(message(idx=INT64, value=FLOAT, label=STRING)))


def _response_header(raw: MessageType) -> MessageType:
    output = message(name=STRING, raw=raw, batch_classes=many(_CLASSES))
    return message(
        model_name=STRING, model_version=INT64, batch_size=INT64, output=many(output), id=INT64
    )  # fmt: skip


RESPONSE_HEADER: Final = _response_header(message(byte_size=INT64))
RESPONSE_HEADER_1_0: Final = _response_header(message(dims=many(INT64), batch_byte_size=INT64))

_CONFIG = message(
    name=STRING, platform=STRING,
    version_policy=message(
        latest=message(num_versions=INT64), all=message(), specific=message(versions=many(INT64))
    ),
    max_batch_size=INT64,
    input=many(
        message(
            name=STRING, data_type=DATA_TYPE, format=EnumType(("FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW")),
            dims=many(INT64),
        )
    ),
    output=many(message(name=STRING, data_type=DATA_TYPE, dims=many(INT64), label_filename=STRING)),
    instance_group=many(
        message(
            name=STRING, count=INT64, gpus=many(INT64),
            kind=EnumType(("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")),
        )
    ),
    default_model_filename=STRING, cc_model_filenames=mapping(STRING, STRING), tags=mapping(STRING, STRING),
    dynamic_batching=message(preferred_batch_size=many(INT64), max_queue_delay_microseconds=INT64),
)  # fmt: skip

_DURATION = message(count=INT64, total_time_ns=INT64)
_STATS = message(success=_DURATION, failed=_DURATION, compute=_DURATION, queue=_DURATION)
MODEL_STATES: Final = EnumType(
    ("MODEL_UNKNOWN", "MODEL_READY", "MODEL_UNAVAILABLE", "MODEL_LOADING", "MODEL_UNLOADING")
)
_VERSION = message(
    ready_state=MODEL_STATES, infer_stats=mapping(INT64, _STATS), model_execution_count=INT64,
    model_inference_count=INT64,
)  # fmt: skip
_UNUSED = ("",) * 6  # numbers
SERVER_STATES: Final = EnumType(
    ("SERVER_INVALID", "SERVER_INITIALIZING", "SERVER_READY", "SERVER_EXITING", *_UNUSED, "SERVER_FAILED_TO_INITIALIZE")
)
SERVER_STATUS: Final = message(
    id=STRING, version=STRING, uptime_ns=INT64,
    model_status=mapping(STRING, message(config=_CONFIG, version_status=mapping(INT64, _VERSION))),
    status_stats=message(), profile_stats=message(), ready_state=SERVER_STATES,
)  # fmt: skip
