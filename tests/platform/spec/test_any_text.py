"""Whatever the text, reading ends in services or in problems with a place: never in another exception."""

import io
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight.spec.field_tables import KSERVE, OME, FieldTable
from pilotlight.spec.field_types import Field, ListOf, MapOf, OneOf, Record, RecordRef, Type
from pilotlight.spec.load_documents import load

HEADS = (
    "apiVersion: ome.io/v1beta1\nkind: InferenceService\n",
    "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\n",
)
NOISE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PIECES = st.sampled_from(
    ["a", ": ", "- ", "\n", "  ", "{", "}", "[", "]", ",", "&x ", "*x", "<<: ", "!!int ", "!t ", "'", '"', "|", ">",
     "#", "%YAML", "---\n", "...", "\t", "?", "\\u00", "\x07", "\ufeff", "\U0001f600", "spec", "name", "1", "~"],
)  # fmt: skip


def check(text: str) -> None:
    loaded = load(["-"], stdin=io.StringIO(text), sets=("spec.engine.minReplicas=1",), environ={})
    assert loaded.services or loaded.catalogue_nodes or loaded.problems.errors
    for problem in loaded.problems.items:
        assert problem.location.file
        assert str(problem)
    for service in loaded.services:
        json.dumps(service.document, allow_nan=False)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_at_all(text: str) -> None:
    check(text)


@given(st.sampled_from(HEADS), st.lists(PIECES, max_size=30).map("".join))
@settings(max_examples=200, deadline=None)
def test_any_text_below_a_head_of_ours(head: str, text: str) -> None:
    check(head + text)


def values(kind: Type, depth: int) -> st.SearchStrategy[Any]:
    """Values that mostly fit the type, so that reading gets past the first check."""
    if depth > 5:
        return NOISE
    match kind:
        case RecordRef():
            return values(kind.resolve(kind.name), depth)
        case Record():
            return st.lists(st.sampled_from(sorted(kind.fields.items())), max_size=4).flatmap(
                lambda chosen: st.fixed_dictionaries({name: field_values(field, depth + 1) for name, field in chosen})
            )
        case ListOf():
            return st.lists(values(kind.item, depth + 1), max_size=2)
        case MapOf():
            return st.dictionaries(st.sampled_from(["a", "b.c/d", "limits"]), values(kind.value, depth + 1), max_size=2)
        case OneOf():
            return st.sampled_from(kind.values)
    return st.sampled_from([0, 1, 100, "1", "10Gi", "a", "5s", True, "./m", "s3://b/m"]) | NOISE


def field_values(field: Field, depth: int) -> st.SearchStrategy[Any]:
    return st.one_of(values(field.type, depth), values(field.type, depth), values(field.type, depth), NOISE)


@given(st.data(), st.sampled_from([OME, KSERVE]))
@settings(max_examples=200, deadline=None)
def test_any_document_that_nearly_fits(data: st.DataObject, table: FieldTable) -> None:
    fields: Any = table.record("InferenceService").fields
    version = fields["apiVersion"].type.values[0]
    document: dict[str, Any] = {"apiVersion": version, "kind": "InferenceService"}
    document["metadata"] = data.draw(st.just({"name": "a"}) | values(fields["metadata"].type, 0))
    document["spec"] = data.draw(values(fields["spec"].type, 0) | NOISE)
    check(json.dumps(document))
