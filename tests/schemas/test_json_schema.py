"""Schemas for editors: committed as the code makes them, and of one mind with the reader."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from schemas import json_schema

from pilotlight.spec.field_types import ListOf, MapOf, Record, RecordRef, Type
from pilotlight.spec.load_documents import load

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[2]
GUIDE = Path(__file__).parents[1] / "platform" / "spec" / "documents" / "ome-guide"
OME = {"apiVersion": "ome.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "a"}}


@pytest.fixture(scope="module")
def ome() -> Any:
    return jsonschema.Draft202012Validator(json.loads((ROOT / "schemas/ome-inferenceservice.json").read_text()))


def test_the_committed_schemas_are_what_the_code_makes() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "schemas").glob("*.json")}
    assert committed == json_schema.texts()


@pytest.mark.parametrize("name", json_schema.DOCUMENTS)
def test_a_schema_is_a_schema_and_explains_our_fields(name: str) -> None:
    schema = json.loads((ROOT / "schemas" / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    fields = {"InferenceServiceSpec": "predictor", "LLMInferenceServiceSpec": "prefill", "InferenceGraphSpec": "nodes"}
    (spec,) = (each for each in fields if each in schema["$defs"])
    assert schema["$defs"][spec]["properties"][fields[spec]]["description"]


@pytest.mark.parametrize("path", sorted(GUIDE.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_the_reader_takes_an_editor_takes(path: Path, ome: Any) -> None:
    ome.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"minReplica": 1}},
        {"engine": {"minReplicas": -1}},
        {"engine": {"minReplicas": "1"}},
        {"engine": {"scaleMetric": "latency"}},
        {"engine": {"runner": {"resources": {"limits": {"memory": "8GB"}}}}},
        {"engine": {"runner": {"env": [{"value": "a"}]}}},
        {"engine": {"labels": {"a": "b c"}}},
        {"model": {}},
    ],
)
def test_what_the_reader_refuses_an_editor_underlines(spec: dict[str, Any], ome: Any, tmp_path: Path) -> None:
    document = OME | {"spec": spec}
    assert not ome.is_valid(document)
    file = tmp_path / "service.json"
    file.write_text(json.dumps(document))
    assert load([str(file)]).problems.errors


def records(kind: Type, seen: dict[str, Record]) -> Iterator[tuple[str, Record]]:
    match kind:
        case RecordRef():
            found = kind.resolve(kind.name)
            yield kind.name, found
            if kind.name not in seen:
                seen[kind.name] = found
                yield from records(found, seen)
        case Record():
            for field in kind.fields.values():
                yield from records(field.type, seen)
        case ListOf():
            yield from records(kind.item, seen)
        case MapOf():
            yield from records(kind.value, seen)


@pytest.mark.parametrize("document", json_schema.DOCUMENTS.values())
def test_one_name_means_one_record_within_a_document(document: Any) -> None:
    seen: dict[str, Record] = {}
    for name, found in records(document(), seen):
        assert seen.get(name, found) == found
