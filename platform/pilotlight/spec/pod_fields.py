"""Kubernetes' records (PodSpec, Container, Probe, …) as types, for the pod fields that are passed through.

Read from data/core_fields.json, which schemas/generate_pod_fields.py writes; a record is built on first use.
"""

import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final, cast

from pilotlight.spec.field_types import (
    Anything,
    Boolean,
    Field,
    Integer,
    IntOrString,
    ListOf,
    MapOf,
    Number,
    OneOf,
    Quantity,
    Record,
    RecordRef,
    String,
    Type,
)

_SIMPLE: Final[dict[str, Type]] = {
    "any": Anything(),
    "bool": Boolean(),
    "int": Integer(),
    "int-or-string": IntOrString(),
    "number": Number(),
    "quantity": Quantity(),
    "string": String(),
}


@cache
def _records() -> dict[str, dict[str, str]]:
    data = json.loads((Path(__file__).parent / "data" / "core_fields.json").read_text())
    return cast(dict[str, dict[str, str]], data["records"])


@cache
def record(name: str) -> Record:
    """Return a Kubernetes record by name."""
    fields = {key.rstrip("!"): Field(_type(text), required=key.endswith("!")) for key, text in _records()[name].items()}
    return Record(name, fields)


def core(name: str) -> RecordRef:
    """Return a lazy reference to a record: many records contain others, some themselves."""
    return RecordRef(name, record)


def fields(name: str, *, optional: Collection[str] = (), without: Collection[str] = ()) -> dict[str, Field]:
    """Return a record's fields for inlining: a component *is* a pod spec with more fields."""
    return {
        key: Field(known.type, required=known.required and key not in optional)
        for key, known in record(name).fields.items()
        if key not in without
    }


def _type(text: str) -> Type:
    if text in _SIMPLE:
        return _SIMPLE[text]
    if text[0] == "[":
        return ListOf(_type(text[1:-1]))
    if text[0] == "{":
        return MapOf(_type(text[1:-1]))
    if "|" in text:
        return OneOf(tuple(text.split("|")))
    if text.startswith("int "):
        low, _, high = text[4:].partition("..")
        return Integer(int(low), int(high) if high else None)
    return core(text)
