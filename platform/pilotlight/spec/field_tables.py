"""Types of documents from data files, spec/data/*.yaml and catalogue/document_types.yaml; built on first use.

    records:
      CanarySpec:
        predictor!: PredictorSpec, The other predictor, with a name.
        trafficPercent!: int 0..100, Its traffic percentage.

A field has its type and, after a comma, its description; `!` marks a required one. Types are written as in
pod_fields.py, and `[A] or B` is a list of A or a map B. Names are looked up in the table, then in its base, then in
Kubernetes' records: `types` are texts and maps with a pattern, `records` are referenced, and `parts` are records that
stand where they are used. A qualified name, such as `ome pod`, is that of the record `pod`.

`+RECORD` inserts the fields of a record: all of them, or `name …` these, `-name` all but these, `name?` as optional.
`.description`, `.ignored`, `.deprecated`, `.hints` and `.hint-for-fields-of` set what `Record` and `Field` call so.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec

from pilotlight.spec import pod_fields
from pilotlight.spec.field_types import Field, ListOf, ListOrMap, MapOf, Record, RecordRef, String, Type

Json = Any
DATA: Final = Path(__file__).parent / "data"


class FieldTable:
    """Records of one file; `base` has those that several files share."""

    def __init__(self, path: Path, base: "FieldTable | None" = None) -> None:
        self._path, self._base = path, base
        self._built: dict[str, Record] = {}

    @cached_property
    def _sections(self) -> Mapping[str, Mapping[str, Mapping[str, Json]]]:
        sections = msgspec.yaml.decode(self._path.read_bytes(), type=dict[str, dict[str, dict[str, Json]]])
        return {"types": {}, "parts": {}, "records": {}} | sections

    def record(self, name: str) -> Record:
        """Return a record of this table, of its base, or of Kubernetes."""
        written = self._sections["records"].get(name) or self._sections["parts"].get(name)
        if written is None:
            return self._base.record(name) if self._base else pod_fields.record(name)
        if name not in self._built:
            self._built[name] = self._build(name, written)
        return self._built[name]

    def _build(self, name: str, written: Mapping[str, Json]) -> Record:
        ignored, deprecated = written.get(".ignored", ()), written.get(".deprecated", {})
        fields: dict[str, Field] = {}
        for key, text in written.items():
            if key[0] == "+":
                fields |= _selected(self.record(key[1:]).fields, (text or "").split())
            elif key[0] != ".":
                field, required = key.rstrip("!"), key.endswith("!")
                type_, _, description = text.partition(", ")
                marks = required, field in ignored, deprecated.get(field, "")
                fields[field] = Field(self._type(type_), description, *marks)
        hints: dict[str, str] = {}
        for other, hint in written.get(".hint-for-fields-of", {}).items():
            hints |= dict.fromkeys(self.record(other).fields, hint)
        hints |= written.get(".hints", {})
        return Record(name.rpartition(" ")[2], fields, written.get(".description", ""), hints)

    def _type(self, text: str) -> Type:
        items, is_either, part = text.partition(" or ")
        if is_either:
            return ListOrMap(ListOf(self._type(items[1:-1])), self.record(part))
        return pod_fields.parse_type(text, self._named)

    def _named(self, name: str) -> Type:
        if written := self._sections["types"].get(name):
            if "value" in written:
                return MapOf(self._type(written["value"]), written["key"], written["expected"])
            return String(**written)
        if name in self._sections["parts"]:
            return self.record(name)
        if name in self._sections["records"]:
            return RecordRef(name, self.record)
        return self._base._named(name) if self._base else pod_fields.core(name)


def _selected(fields: Mapping[str, Field], words: list[str]) -> dict[str, Field]:
    names = [word.rstrip("?") for word in words if word[0] != "-"]
    if all(word.endswith("?") or word[0] == "-" for word in words):
        names = [name for name in fields if f"-{name}" not in words]
    return {name: replace(fields[name], required=False) if f"{name}?" in words else fields[name] for name in names}


COMPONENTS: Final = FieldTable(DATA / "components.yaml")
KSERVE: Final = FieldTable(DATA / "kserve.yaml", COMPONENTS)
OME: Final = FieldTable(DATA / "ome.yaml", COMPONENTS)
LLM: Final = FieldTable(DATA / "llm_inference_service.yaml", COMPONENTS)
GRAPH: Final = FieldTable(DATA / "inference_graph.yaml", COMPONENTS)
