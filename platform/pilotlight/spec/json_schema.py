"""JSON Schemas of the documents, generated from the types that read them, so that editors agree with `validate`.

`python -m pilotlight.spec.json_schema DIRECTORY` writes them; schemas/ holds the committed ones, and a test compares.
A document refers to one by `# yaml-language-server: $schema=PATH`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pilotlight.spec import kserve_fields, ome_fields
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
