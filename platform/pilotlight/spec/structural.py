"""Structural schemas for CustomResourceDefinitions, generated from the types that read documents.

They allow no references, so Kubernetes' own records stay open: written out, a single InferenceService would be 600 KB,
and `platformctl validate` and the API server check pods anyway.
"""

from typing import Any, Final

from pilotlight.spec import core_fields
from pilotlight.spec.types import (
    DURATION,
    QUANTITY,
    Anything,
    Boolean,
    Duration,
    Field,
    Integer,
    IntOrString,
    ListOf,
    ListOrMap,
    MapOf,
    Number,
    OneOf,
    Quantity,
    Record,
    RecordRef,
    String,
    Type,
)

Json = Any
OPEN: Final = "x-kubernetes-preserve-unknown-fields"
EITHER: Final = "x-kubernetes-int-or-string"


def record_schema(record: Record) -> dict[str, Json]:
    """Return the schema of a record, without additionalProperties: the API server prunes unknown fields."""
    schema: dict[str, Json] = {"type": "object"}
    if record.description:
        schema["description"] = record.description
    required = [name for name, known in record.fields.items() if known.required and not known.ignored]
    if required:
        schema["required"] = required
    fields = {name: _field(known) for name, known in record.fields.items() if not known.ignored}
    return schema | ({"properties": fields} if fields else {})


def _field(known: Field) -> dict[str, Json]:
    schema = type_schema(known.type)
    description = f"{known.description} Deprecated: {known.deprecated}." if known.deprecated else known.description
    return schema | ({"description": description} if description else {})


def type_schema(type: Type) -> dict[str, Json]:  # noqa: A002
    """Return the schema of a type."""
    match type:
        case RecordRef() if type.resolve is core_fields.record:
            return {"type": "object", OPEN: True}
        case RecordRef():
            return record_schema(type.resolve(type.name))
        case Record():
            return record_schema(type)
        case ListOf():
            return {"type": "array", "items": type_schema(type.item)}
        case ListOrMap():
            return type_schema(type.items)  # one form only; the map is never stored in a cluster
        case MapOf():
            return {"type": "object", "additionalProperties": type_schema(type.value)}
        case _:
            return _scalar(type)


def _scalar(type: Type) -> dict[str, Json]:  # noqa: A002
    match type:
        case String():
            schema = {"pattern": _whole(type.pattern)} if type.pattern else {}
            return {"type": "string", **schema, **({"maxLength": type.max_length} if type.max_length else {})}
        case Integer():
            bounds = {"minimum": type.minimum, "maximum": type.maximum}
            return {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
        case OneOf():
            return {"type": "string", "enum": list(type.values)}
        case Quantity():
            return {**_either(), "pattern": _whole(QUANTITY)}
        case IntOrString():
            return _either()
        case Duration():
            return {"type": "string", "pattern": _whole(DURATION)}
        case Boolean():
            return {"type": "boolean"}
        case Number():
            return {"type": "number"}
        case Anything():
            return {OPEN: True}
    raise TypeError(f"{type!r} has no structural schema")


def _either() -> dict[str, Json]:
    return {EITHER: True, "anyOf": [{"type": "integer"}, {"type": "string"}]}


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"
