"""JSON Schemas of the documents, made of the types that read them: an editor and `validate` can never disagree.

`python -m pilotlight.spec.json_schema DIRECTORY` writes them; schemas/ holds the committed ones, and a test compares.
In a document, name one by `# yaml-language-server: $schema=PATH`.
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
DOCUMENTS: Final[dict[str, Callable[[], Record]]] = {
    "ome-inferenceservice.json": ome_fields.inference_service,
    "kserve-inferenceservice.json": kserve_fields.inference_service,
}


def schema(record: Record) -> dict[str, Json]:
    """A complete schema, draft 2020-12; named records are defined once and referred to."""
    definitions: dict[str, Json] = {}
    root = _record(record, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": record.name,
        **root,
        "$defs": dict(sorted(definitions.items())),
    }


def _record(record: Record, definitions: dict[str, Json]) -> dict[str, Json]:
    made: dict[str, Json] = {"description": record.description} if record.description else {}
    made |= {
        "type": "object",
        "properties": {name: _field(known, definitions) for name, known in record.fields.items()},
        "additionalProperties": False,
    }
    required = [name for name, known in record.fields.items() if known.required]
    return made | ({"required": required} if required else {})


def _field(known: Field, definitions: dict[str, Json]) -> Json:
    if known.ignored:
        return {"description": "Written by the cluster; ignored.", "readOnly": True}
    made: dict[str, Json] = {"description": known.description} if known.description else {}
    made |= _type(known.type, definitions)
    if known.deprecated:
        made |= {"deprecated": True, "description": f"{known.description} Deprecated: {known.deprecated}."}
    return made


def _type(type: Type, definitions: dict[str, Json]) -> dict[str, Json]:  # noqa: A002 - the word of the matter
    match type:
        case Named():
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


def _reference(named: Named, definitions: dict[str, Json]) -> dict[str, Json]:
    if named.name not in definitions:
        definitions[named.name] = {}  # before its fields are walked: it may contain itself
        definitions[named.name] = _record(named.find(named.name), definitions)
    return {"$ref": f"#/$defs/{named.name}"}


def _scalar(type: Type) -> dict[str, Json]:  # noqa: A002
    match type:
        case Text():
            return _text(type)
        case Truth():
            return {"type": "boolean"}
        case Whole():
            bounds = {"minimum": type.minimum, "maximum": type.maximum}
            return {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
        case Number():
            return {"type": "number"}
        case OneOf():
            return {"enum": list(type.values)}
        case Quantity():
            return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": f"^(?:{QUANTITY})$"}]}
        case WholeOrText():
            return {"type": ["integer", "string"]}
        case Duration():
            return {"type": "string", "pattern": f"^(?:{DURATION})$"}
        case Anything():
            return {}
    raise TypeError(f"{type!r} has no schema")


def _text(text: Text) -> dict[str, Json]:
    made: dict[str, Json] = {"type": "string"}
    if text.pattern:
        made["pattern"] = f"^(?:{text.pattern})$"
    return made | ({"maxLength": text.longest} if text.longest else {})


def texts() -> dict[str, str]:
    """File name → content of every schema."""
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
