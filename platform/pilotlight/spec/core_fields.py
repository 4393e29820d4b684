"""Kubernetes' own records (PodSpec, Container, Probe, …) as types, for the parts of a document that we pass through.

Read from data/core_fields.json, which `core_generation` writes; a record is built when it is first needed.
"""

import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Final, cast

from pilotlight.spec.types import (
    Anything,
    Field,
    ListOf,
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
)  # fmt: skip

_SIMPLE: Final[dict[str, Type]] = {
    "any": Anything(),
    "bool": Truth(),
    "int": Whole(),
    "int-or-string": WholeOrText(),
    "number": Number(),
    "quantity": Quantity(),
    "string": Text(),
}


@cache
def _records() -> dict[str, dict[str, str]]:
    data = json.loads((Path(__file__).parent / "data" / "core_fields.json").read_text())
    return cast(dict[str, dict[str, str]], data["records"])


@cache
def record(name: str) -> Record:
    """A Kubernetes record by name."""
    fields = {key.rstrip("!"): Field(_type(text), required=key.endswith("!")) for key, text in _records()[name].items()}
    return Record(name, fields)


def core(name: str) -> Named:
    """The same, found when a document first needs it: many records contain others, some themselves."""
    return Named(name, record)


def fields(name: str, *, optional: Collection[str] = (), without: Collection[str] = ()) -> dict[str, Field]:
    """A record's fields, to be written inline in one of ours: a component *is* a pod spec with more fields."""
    found = record(name).fields
    return {
        key: Field(known.type, required=known.required and key not in optional)
        for key, known in found.items()
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
        return Whole(int(low), int(high) if high else None)
    return core(text)
