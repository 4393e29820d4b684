"""Structural schemas, the only ones that a CustomResourceDefinition takes, made of the types that read documents.

They know no references, so Kubernetes' own records stay open: written out, a single InferenceService would be 600 KB,
and what is in them `platformctl validate` and the API server judge anyway. `crds` puts these schemas into objects.
"""

from typing import Any, Final

from pilotlight.spec import core_fields
from pilotlight.spec.types import (
    DURATION,
    QUANTITY,
    Anything,
    Duration,
    Field,
    ListOf,
    ListOrMap,
    MapOf,
    Named,
    Number,
    OneOf,
    Quantity,
    Record,
    Text,
    Truth,
    Type,
    Whole,
    WholeOrText,
)

Json = Any
OPEN: Final = "x-kubernetes-preserve-unknown-fields"
EITHER: Final = "x-kubernetes-int-or-string"


def record_schema(record: Record) -> dict[str, Json]:
    """Unknown fields are pruned by the API server, so nothing says that there are none."""
    made: dict[str, Json] = {"type": "object"}
    if record.description:
        made["description"] = record.description
    required = [name for name, known in record.fields.items() if known.required and not known.ignored]
    if required:
        made["required"] = required
    fields = {name: _field(known) for name, known in record.fields.items() if not known.ignored}
    return made | ({"properties": fields} if fields else {})


def _field(known: Field) -> dict[str, Json]:
    made = type_schema(known.type)
    said = f"{known.description} Deprecated: {known.deprecated}." if known.deprecated else known.description
    return made | ({"description": said} if said else {})


def type_schema(type: Type) -> dict[str, Json]:  # noqa: A002 - the word of the matter
    match type:
        case Named() if type.find is core_fields.record:
            return {"type": "object", OPEN: True}
        case Named():
            return record_schema(type.find(type.name))
        case Record():
            return record_schema(type)
        case ListOf():
            return {"type": "array", "items": type_schema(type.item)}
        case ListOrMap():
            return type_schema(type.items)  # a cluster's schema knows one form; a map is never kept there
        case MapOf():
            return {"type": "object", "additionalProperties": type_schema(type.value)}
        case _:
            return _scalar(type)


def _scalar(type: Type) -> dict[str, Json]:  # noqa: A002
    match type:
        case Text():
            made = {"pattern": _whole(type.pattern)} if type.pattern else {}
            return {"type": "string", **made, **({"maxLength": type.longest} if type.longest else {})}
        case Whole():
            bounds = {"minimum": type.minimum, "maximum": type.maximum}
            return {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
        case OneOf():
            return {"type": "string", "enum": list(type.values)}
        case Quantity():
            return {**_either(), "pattern": _whole(QUANTITY)}
        case WholeOrText():
            return _either()
        case Duration():
            return {"type": "string", "pattern": _whole(DURATION)}
        case Truth():
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
