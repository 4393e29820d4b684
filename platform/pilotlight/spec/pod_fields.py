"""Kubernetes' records (PodSpec, Container, Probe, …) as types, for the pod fields that are passed through.

Read from data/core_fields.json, which schemas/generate_pod_fields.py writes; a record is built on first use.

A type is written as text: `string`, `bool`, `int`, `int 1..65535`, `number`, `quantity`, `duration`, `int-or-string`,
`any`, `A|B` for a choice, `=A` for the only one, `[T]` for a list, `{T}` for a map; any other word names a record.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, cast

from pilotlight.spec.field_types import (
    Anything,
    Boolean,
    Duration,
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
    "duration": Duration(),
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
    fields = {
        key.rstrip("!"): Field(parse_type(text), required=key.endswith("!")) for key, text in _records()[name].items()
    }
    return Record(name, fields)


def core(name: str) -> RecordRef:
    """Return a lazy reference to a record: many records contain others, some themselves."""
    return RecordRef(name, record)


def parse_type(text: str, named: Callable[[str], Type] = core) -> Type:
    """Return the type of a text; `named` returns that of a record's name."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    if text[0] == "[":
        return ListOf(parse_type(text[1:-1], named))
    if text[0] == "{":
        return MapOf(parse_type(text[1:-1], named))
    if text[0] == "=":
        return OneOf((text[1:],))
    if "|" in text:
        return OneOf(tuple(text.split("|")))
    if text.startswith("int "):
        low, _, high = text[4:].partition("..")
        return Integer(int(low), int(high) if high else None)
    return named(text)
