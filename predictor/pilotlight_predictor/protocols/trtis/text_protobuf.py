"""TRTIS messages as protobuf text, and those of which no proto has the fields of all generations.

Hand-written, since importing protobuf would cost more than encoding these small responses. Defaults are left out, as
in protobuf. One table reads the request headers of all generations, since their fields have different names; where
0.11 changed the wire format there is a second table.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pilotlight_predictor.core.message_types import (
    SCALARS,
    EnumType,
    FieldType,
    MessageType,
    enum_values,
    many,
    message,
    message_type,
)

Values = Mapping[str, Any]
PACKAGE: Final = "nvidia.inferenceserver"
STRING, INT64, UINT32, UINT64 = (SCALARS[name] for name in ("string", "int64", "uint32", "uint64"))
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "'": "\\'", "\\": "\\\\"}
_ESCAPES: Final = tuple(
    _NAMED.get(chr(byte), chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in range(256)
)


def write_text(values: Values, type_: MessageType, *, one_line: bool = False) -> str:
    """Encode as protobuf's DebugString, or on one line for a header."""
    lines = list(_lines(values, type_, ""))
    return " ".join(line.strip() for line in lines) if one_line else "".join(f"{line}\n" for line in lines)


def _items(value: Any, field: FieldType, explicit: bool) -> Iterable[Any]:
    """Return the values to write; `explicit`: with defaults, as in an entry of a map."""
    if field.shape == "many":
        return value  # type: ignore[no-any-return]
    if field.shape == "map":
        return [{"key": key, "value": item} for key, item in value.items()]
    scalar = field.type.values[value] if isinstance(field.type, EnumType) else value
    return (value,) if explicit or isinstance(field.type, MessageType) or scalar else ()


def _lines(values: Values, type_: MessageType, indent: str, explicit: bool = False) -> Iterator[str]:
    for name, field in type_.fields.items():
        if (value := values.get(name)) is None:
            continue
        nested = field.entry if field.shape == "map" else field.type
        for item in _items(value, field, explicit):
            if isinstance(nested, MessageType):
                yield f"{indent}{name} {{"
                yield from _lines(item, nested, indent + "  ", explicit=field.shape == "map")
                yield f"{indent}}}"
            else:
                word = ("true" if item else "false") if nested.name == "bool" else str(item)
                yield f"{indent}{name}: {quoted(item) if nested.name == 'string' else word}"


def quoted(text: str) -> str:
    """Return a quoted string in ASCII, since it may be sent in a header."""
    return '"' + "".join(_ESCAPES[byte] for byte in text.encode("utf-8", "replace")) + '"'


REQUEST_HEADER: Final = message(
    batch_size=UINT32,
    input=many(message(name=STRING, byte_size=UINT64, dims=many(INT64), batch_byte_size=UINT64)),
    output=many(message(name=STRING, byte_size=UINT64, cls=message(count=UINT32))), correlation_id=UINT64,
    id=UINT64, flags=UINT32,
)  # fmt: skip

REQUEST_CODES: Final = enum_values(f"{PACKAGE}.RequestStatusCode")
MODEL_STATES: Final = enum_values(f"{PACKAGE}.ModelReadyState")
REQUEST_STATUS: Final = message_type(f"{PACKAGE}.RequestStatus")
SERVER_STATUS: Final = message_type(f"{PACKAGE}.ServerStatus")
RESPONSE_HEADER: Final = message_type(f"{PACKAGE}.InferResponseHeader")
_OUTPUT_1_0 = message(
    name=STRING, raw=message(dims=many(INT64), batch_byte_size=UINT64),
    batch_classes=many(message_type(f"{PACKAGE}.InferResponseHeader.Output.Classes")),
)  # fmt: skip
RESPONSE_HEADER_1_0: Final = message(
    model_name=STRING, model_version=INT64, batch_size=UINT32, output=many(_OUTPUT_1_0), id=UINT64
)  # fmt: skip
