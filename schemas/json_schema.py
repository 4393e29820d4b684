"""JSON Schemas of the documents for editors, and structural schemas for CRDs, from the types that read the documents.

`python -m schemas.json_schema DIRECTORY` writes the former; schemas/ holds them, and a test compares.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from pilotlight.spec import pod_fields
from pilotlight.spec.field_tables import GRAPH, KSERVE, LLM, OME
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
OPEN: Final = "x-kubernetes-preserve-unknown-fields"
EITHER: Final = "x-kubernetes-int-or-string"
DOCUMENTS: Final[dict[str, Callable[[], Record]]] = {
    "ome-inferenceservice.json": partial(OME.record, "InferenceService"),
    "kserve-inferenceservice.json": partial(KSERVE.record, "InferenceService"),
    "kserve-llminferenceservice.json": partial(LLM.record, "LLMInferenceService"),
    "kserve-inferencegraph.json": partial(GRAPH.record, "InferenceGraph"),
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
        return {"description": "Set by the cluster; ignored.", "readOnly": True}
    fragment: dict[str, Json] = {"description": known.description} if known.description else {}
    fragment |= _type(known.type, definitions)
    if known.deprecated:
        fragment |= {"deprecated": True, "description": f"{known.description} Deprecated: {known.deprecated}."}
    return fragment


def _type(type: Type, definitions: dict[str, Json]) -> dict[str, Json]:  # noqa: A002
    match type:
        case RecordRef():
            if type.name not in definitions:
                definitions[type.name] = {}  # before its fields, since it may contain itself
                definitions[type.name] = _record(type.resolve(type.name), definitions)
            return {"$ref": f"#/$defs/{type.name}"}
        case Record():
            return _record(type, definitions)
        case ListOf():
            return {"type": "array", "items": _type(type.item, definitions)}
        case ListOrMap():
            return {"anyOf": [_type(type.items, definitions), _record(type.map, definitions)]}
        case MapOf():
            keys = {"propertyNames": {"pattern": _whole(type.key)}} if type.key else {}
            return {"type": "object", "additionalProperties": _type(type.value, definitions), **keys}
        case _:
            return _scalar(type)


def _scalar(type: Type) -> dict[str, Json]:  # noqa: A002
    match type:
        case String():
            pattern = {"pattern": _whole(type.pattern)} if type.pattern else {}
            return {"type": "string", **pattern, **({"maxLength": type.max_length} if type.max_length else {})}
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
            return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _whole(QUANTITY)}]}
        case IntOrString():
            return {"type": ["integer", "string"]}
        case Duration():
            return {"type": "string", "pattern": _whole(DURATION)}
        case Anything():
            return {}
    raise TypeError(f"{type!r} has no schema")


def record_schema(record: Record) -> dict[str, Json]:
    """Return the schema of a record, without additionalProperties: the API server prunes unknown fields."""
    schema: dict[str, Json] = {"type": "object"}
    if record.description:
        schema["description"] = record.description
    required = [name for name, known in record.fields.items() if known.required and not known.ignored]
    if required:
        schema["required"] = required
    fields = {name: type_schema(known.type) for name, known in record.fields.items() if not known.ignored}
    for name, field in fields.items():
        known = record.fields[name]
        deprecated = f" Deprecated: {known.deprecated}." if known.deprecated else ""
        if known.description or deprecated:
            field["description"] = f"{known.description}{deprecated}"
    return schema | ({"properties": fields} if fields else {})


def type_schema(type: Type) -> dict[str, Json]:  # noqa: A002
    """Return the structural schema of a type, which allows no references.

    Kubernetes' own records stay open: written out, a single InferenceService would be 600 KB, and `platformctl
    validate` and the API server check pods anyway.
    """
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
            return {OPEN: True}  # a structural schema has one type
        case MapOf():
            return {"type": "object", "additionalProperties": type_schema(type.value)}
        case OneOf():
            return {"type": "string", "enum": list(type.values)}
        case Quantity() | IntOrString():
            pattern = {"pattern": _whole(QUANTITY)} if isinstance(type, Quantity) else {}
            return {EITHER: True, "anyOf": [{"type": "integer"}, {"type": "string"}], **pattern}
        case Anything():
            return {OPEN: True}
        case _:
            return _scalar(type)


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def texts() -> dict[str, str]:
    """Return file name → content of every schema."""
    schemas = {name: schema(record()) for name, record in DOCUMENTS.items()}
    return {name: json.dumps(each, indent=1, ensure_ascii=False) + "\n" for name, each in schemas.items()}


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    for name, text in texts().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
