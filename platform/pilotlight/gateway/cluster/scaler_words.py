"""Protobuf messages of KEDA's external scaler. Pure; without a library, for a handful of fields.

ScaledObjectRef         name = 1, namespace = 2, scalerMetadata = 3 (map: key = 1, value = 2)
GetMetricsRequest       scaledObjectRef = 1, metricName = 2
IsActiveResponse        result = 1
GetMetricSpecResponse   metricSpecs = 1: metricName = 1, targetSize = 2, targetSizeFloat = 3
GetMetricsResponse      metricValues = 1: metricName = 1, metricValue = 2, metricValueFloat = 3
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pilotlight.errors import PlatformError

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5


class MalformedMessage(PlatformError):
    """Bytes that are no valid message."""


class ScaledObjectRef(NamedTuple):
    """`metadata` is that of the trigger."""

    name: str
    namespace: str
    metadata: dict[str, str]


class MetricsRequest(NamedTuple):
    scaled_object: ScaledObjectRef
    metric: str


def read_scaled_object(raw: bytes) -> ScaledObjectRef:
    name = namespace = ""
    metadata: dict[str, str] = {}
    for number, value in _fields(raw):
        if number == 1:
            name = _text(value)
        elif number == 2:
            namespace = _text(value)
        elif number == 3:
            entry = dict(_fields(value)) if isinstance(value, bytes) else {}
            metadata[_text(entry.get(1, b""))] = _text(entry.get(2, b""))
    return ScaledObjectRef(name, namespace, metadata)


def read_metrics_request(raw: bytes) -> MetricsRequest:
    fields = dict(_fields(raw))
    reference = fields.get(1, b"")
    scaled_object = read_scaled_object(reference if isinstance(reference, bytes) else b"")
    return MetricsRequest(scaled_object, _text(fields.get(2, b"")))


def write_active(active: bool) -> bytes:
    """Encode IsActiveResponse; an absent field means false."""
    return b"\x08\x01" if active else b""


def write_spec(metric: str, target: float) -> bytes:
    return _delimited(1, _metric(metric, target))


def write_value(metric: str, value: float) -> bytes:
    return _delimited(1, _metric(metric, value))


def _metric(name: str, value: float) -> bytes:
    """Encode both fields: rounded for older versions of KEDA, and exact."""
    return _delimited(1, name.encode()) + b"\x10" + _varint(round(value)) + b"\x19" + struct.pack("<d", value)


def _delimited(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field, unknown ones included."""
    at = 0
    while at < len(raw):
        key, at = _read_varint(raw, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _read_varint(raw, at)
            yield key >> 3, value
            continue
        if kind not in (BYTES, FIXED32, FIXED64):
            raise MalformedMessage(f"field {key >> 3} has wire type {kind}")
        length, at = _read_varint(raw, at) if kind == BYTES else (4 if kind == FIXED32 else 8, at)
        if at + length > len(raw):
            raise MalformedMessage(f"field {key >> 3} claims {length} bytes, {len(raw) - at} are left")
        yield key >> 3, raw[at : at + length]
        at += length


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedMessage("a number does not end")


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise MalformedMessage("a number stands where a text must")
    return value.decode(errors="replace")
