"""JSON Schema and CRD schema from types.

JSON Schemas of the documents, generated from the types that read them, so that editors agree with `validate`.

`python -m pilotlight.schemas.json_schema DIRECTORY` writes them; schemas/ holds the committed ones, and a test compares.
A document refers to one by `# yaml-language-server: $schema=PATH`.

Structural schemas for CustomResourceDefinitions, generated from the types that read documents.

They allow no references, so Kubernetes' own records stay open: written out, a single InferenceService would be 600 KB,
and `platformctl validate` and the API server check pods anyway.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pilotlight.spec import kserve_fields, ome_fields, pod_fields
from pilotlight.spec.field_types import (
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
DOCUMENTS: Final[dict[str, Callable[[], Record]]] = {
    "ome-inferenceservice.json": ome_fields.inference_service,
    "kserve-inferenceservice.json": kserve_fields.inference_service,
}


def schema(record: Record) -> dict[str, Json]:
    """Return a complete schema, draft 2020-12; named records are defined once and referenced."""
    definitions: dict[str, Json] = {}
    root = _record(record, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": record.name,
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _record(record: Record, definitions: dict[str, Json]) -> dict[str, Json]:
    fragment: dict[str, Json] = {"description": record.description} if record.description else {}
    fragment |= {
        "type": "object",
        "properties": {name: _field(known, definitions) for name, known in record.fields.items()},
        "additionalProperties": False,
    }
    required = [name for name, known in record.fields.items() if known.required]
    return fragment | ({"required": required} if required else {})


def _field(known: Field, definitions: dict[str, Json]) -> Json:
    if known.ignored:
        return {"description": "Written by the cluster; ignored.", "readOnly": True}
    fragment: dict[str, Json] = {"description": known.description} if known.description else {}
    fragment |= _type(known.type, definitions)
    if known.deprecated:
        fragment |= {"deprecated": True, "description": f"{known.description} Deprecated: {known.deprecated}."}
    return fragment


def _type(type: Type, definitions: dict[str, Json]) -> dict[str, Json]:  # noqa: A002
    match type:
        case RecordRef():
            return _reference(type, definitions)
        case Record():
            return _record(type, definitions)
        case ListOf():
            return {"type": "array", "items": _type(type.item, definitions)}
        case ListOrMap():
            return {"anyOf": [_type(type.items, definitions), _record(type.map, definitions)]}
        case MapOf():
            keys = {"propertyNames": {"pattern": f"^(?:{type.key})$"}} if type.key else {}
            return {"type": "object", "additionalProperties": _type(type.value, definitions), **keys}
        case _:
            return _scalar(type)


def _reference(named: RecordRef, definitions: dict[str, Json]) -> dict[str, Json]:
    if named.name not in definitions:
        definitions[named.name] = {}  # before its fields, since it may contain itself
        definitions[named.name] = _record(named.resolve(named.name), definitions)
    return {"$ref": f"#/$defs/{named.name}"}


def _scalar(type: Type) -> dict[str, Json]:  # noqa: A002
    match type:
        case String():
            return _text(type)
        case Boolean():
            return {"type": "boolean"}
        case Integer():
            bounds = {"minimum": type.minimum, "maximum": type.maximum}
            return {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
        case Number():
            return {"type": "number"}
        case OneOf():
            return {"enum": list(type.values)}
        case Quantity():
            return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^(?:{QUANTITY})$"}]}
        case IntOrString():
            return {"type": ["integer", "string"]}
        case Duration():
            return {"type": "string", "pattern": f"^(?:{DURATION})$"}
        case Anything():
            return {}
    raise TypeError(f"{type!r} has no schema")


def _text(text: String) -> dict[str, Json]:
    fragment: dict[str, Json] = {"type": "string"}
    if text.pattern:
        fragment["pattern"] = f"^(?:{text.pattern})$"
    return fragment | ({"maxLength": text.max_length} if text.max_length else {})


def texts() -> dict[str, str]:
    """Return file name → content of every schema."""
    return {
        name: json.dumps(schema(record()), indent=1, ensure_ascii=False) + "\n" for name, record in DOCUMENTS.items()
    }


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    for name, text in texts().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()


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
    fields = {name: _structural_field(known) for name, known in record.fields.items() if not known.ignored}
    return schema | ({"properties": fields} if fields else {})


def _structural_field(known: Field) -> dict[str, Json]:
    schema = type_schema(known.type)
    description = f"{known.description} Deprecated: {known.deprecated}." if known.deprecated else known.description
    return schema | ({"description": description} if description else {})


def type_schema(type: Type) -> dict[str, Json]:  # noqa: A002
    """Return the schema of a type."""
    match type:
        case RecordRef() if type.resolve is pod_fields.record:
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
            return _structural_scalar(type)


def _structural_scalar(type: Type) -> dict[str, Json]:  # noqa: A002
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
