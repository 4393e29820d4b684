"""Constrained decoding of the text backend: whatever is sampled follows the schema; hostile schemas are refused."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eventually import eventually
from tests.predictor.backends.text.conftest import Heard, bytes_tensor, text_instance
from tests.predictor.backends.text.tools import tool_model

from pilotlight_predictor.backends.text import grammar
from pilotlight_predictor.backends.text.backend import TextInstance
from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.errors import Unavailable

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["adult", "child"]},
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        "next": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "id", "next", "tags"],
    "additionalProperties": False,
    "$defs": {
        "leaf": {"type": "object", "properties": {"v": {"const": 1}}, "required": ["v"], "additionalProperties": False}
    },
}


@pytest.fixture(scope="module")
def roomy(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextInstance]:
    made = text_instance(tool_model(tiny, tmp_path_factory.mktemp("roomy") / "m"))
    yield made
    made.close()


def answer_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def ask(instance: TextInstance, form: Any, **sampling: Any) -> Heard:
    heard = Heard("Say: ", **{"max_tokens": 400, **sampling})
    heard.request.inputs["response_format"] = bytes_tensor(json.dumps(form).encode())
    instance.begin([heard])
    return heard.wait()


@pytest.mark.parametrize("how", [{"temperature": 0}, {"top_k": 5}, {"top_p": 0.9}, {"temperature": 2}], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_sampled_text_follows_its_schema(roomy: TextInstance, how: dict[str, Any], stream: bool) -> None:
    heard = ask(roomy, answer_format(PERSON), stream=stream, seed=3, **how)
    jsonschema.validate(json.loads(heard.text()), PERSON)
    assert heard.value("finish_reason") == b"stop"


SCHEMAS = st.recursive(
    st.sampled_from([
        {"type": "boolean"}, {"type": "null"}, {"enum": ["a", 2, None]}, {"const": {"x": [1]}},
        {"type": "integer", "minimum": -5, "maximum": 99}, {"type": "string", "minLength": 1, "maxLength": 4},
        {"type": "string", "pattern": "^a[bc]{1,3}$"}, {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        {"type": "string", "format": "date"},
    ]),
    lambda each: st.one_of(
        st.builds(lambda x, n: {"type": "array", "items": x, "minItems": 1, "maxItems": n}, each, st.integers(1, 2)),
        st.builds(lambda x, y: {"anyOf": [x, y]}, each, each),
        st.dictionaries(st.sampled_from(["a", "ü", 'q"']), each, min_size=1).map(
            lambda p: {"type": "object", "properties": p, "required": list(p)[:1], "additionalProperties": False}
        ),
    ),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.long
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_any_supported_schema_is_followed(roomy: TextInstance, schema: dict[str, Any], seed: int) -> None:
    heard = ask(roomy, answer_format(schema), seed=seed, max_tokens=1000)
    jsonschema.validate(json.loads(heard.text()), schema)


def test_choices_with_a_schema_follow_it_each(roomy: TextInstance) -> None:
    heard = ask(roomy, answer_format(PERSON), n=4, seed=1)
    texts = {heard.text(index) for index in range(4)}
    assert len(texts) > 1
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)


def test_a_row_beside_a_constrained_one_is_unchanged(roomy: TextInstance) -> None:
    alone = Heard("The quick", temperature=0, max_tokens=20)
    roomy.begin([alone])
    beside, constrained = Heard("The quick", temperature=0, max_tokens=20), Heard("Say: ", max_tokens=200)
    constrained.request.inputs["response_format"] = bytes_tensor(b'{"type": "json_object"}')
    alone.wait()
    roomy.begin([constrained, beside])
    assert beside.wait().text() == alone.text()
    constrained.wait()


def test_max_tokens_cuts_json_with_length(roomy: TextInstance) -> None:
    heard = ask(roomy, answer_format(PERSON), max_tokens=4)
    assert heard.value("finish_reason") == b"length"


def test_ignore_eos_does_not_go_on_after_the_json(roomy: TextInstance) -> None:
    heard = ask(roomy, answer_format({"enum": ["a"]}), ignore_eos=True)
    assert (heard.text(), heard.value("finish_reason")) == ('"a"', b"stop")


def test_a_cancelled_request_with_a_schema_frees_its_slots(roomy: TextInstance) -> None:
    heard = Heard("Say: ", stream=True, max_tokens=1500)
    heard.request.inputs["response_format"] = bytes_tensor(
        json.dumps(answer_format({"type": "array", "items": {"type": "integer"}, "minItems": 1000})).encode()
    )

    def cancel(heard: Heard) -> None:
        heard.cancelled = True

    heard.on_send = cancel
    roomy.begin([heard])
    heard.wait()
    assert ask(roomy, answer_format({"const": 1}), n=roomy.engine.slots).text() == "1"


def chain(count: int, link: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    definitions = {str(number): link(number + 1) for number in range(count)} | {str(count): {"type": "string"}}
    return {"$defs": definitions, "$ref": "#/$defs/0"}


def nested(count: int, leaf: dict[str, Any], wrap: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    for _ in range(count):
        leaf = wrap(leaf)
    return leaf


def pattern_chain(count: int, wrap: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A text for which all of the patterns hold: each refers to the next one."""
    return chain(
        count, lambda number: {"type": "string", "pattern": f".*{number}.*", **wrap({"$ref": f"#/$defs/{number}"})}
    )


REFUSED = {
    "unknown keyword": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "lookahead": ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
    "endless reference": ({"$ref": "#"}, "no text fits it"),
    "remote reference": ({"$ref": "https://example.com/schema.json"}, "not supported"),
    "large": ({"enum": [f"value {number}" for number in range(10_000)]}, "65536"),
    "repetitions": ({"type": "string", "pattern": "^((a{100}){100}){100}$"}, "10000"),
    "deep": (nested(200, {"type": "string"}, lambda each: {"items": each}), "not supported"),
    "branches": ({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(4)]} for i in range(12)]}, "too large"),
    "type": ({"type": "text"}, "not supported"),
    "intersected patterns": (
        {"allOf": [{"type": "string", "pattern": f".*{each}"} for each in "abcdefghijk"]},
        "more than 10",
    ),
    "patterns along references": (pattern_chain(20, lambda rest: rest), "more than 10"),
    "patterns along alternatives": (pattern_chain(20, lambda rest: {"anyOf": [rest]}), "more than 10"),
    "patterns of one property": (
        {"allOf": [{"type": "object", "properties": {"x": {"pattern": f".*{each}"}}} for each in range(11)]},
        "more than 10",
    ),
    "deep references": (chain(1400, lambda number: {"items": {"$ref": f"#/$defs/{number}"}}), "nested too deeply"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_is_not_supported_is_refused_by_name(roomy: TextInstance, name: str) -> None:
    schema, part = REFUSED[name]
    error = ask(roomy, answer_format(schema)).error
    assert isinstance(error, BadField)
    assert error.field == "response_format"
    assert part in str(error)
    assert "\n" not in str(error)
    assert " | " not in str(error)  # a line of the grammar that is made of it
    assert len(str(error)) < 400


def test_patterns_of_different_texts_are_not_counted_together(roomy: TextInstance) -> None:
    kinds = {f"kind{number}": {"type": "string", "pattern": f"^{number}a+$"} for number in range(20)}
    properties = {name: {"$ref": f"#/$defs/{name}", "description": "a kind"} for name in kinds}
    schema = {"$defs": kinds, "type": "object", "properties": properties, "required": ["kind0"]}
    assert ask(roomy, answer_format(schema), max_tokens=4).value("finish_reason") == b"length"


HOSTILE = {
    "references": chain(1400, lambda number: {"items": {"$ref": f"#/$defs/{number}"}}),
    "nested references": chain(180, lambda number: nested(20, {"$ref": f"#/$defs/{number}"}, lambda x: {"items": x})),
    "direct references": chain(1500, lambda number: {"$ref": f"#/$defs/{number}"}),
    "doubled references": chain(40, lambda number: {"allOf": [{"$ref": f"#/$defs/{number}"}] * 2}),
    "counts": {"type": "array", "minItems": 10**6, "items": {"type": "string", "minLength": 10**6}},
    "repetition": {"type": "string", "pattern": "^(.*a.{400}){20}$"},
    "multiples": {"type": "integer", "multipleOf": 9973, "minimum": 12345678901234, "maximum": 999999999999999},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_neither_ends_nor_stops_the_server(roomy: TextInstance, name: str) -> None:
    begin = monotonic()
    heard = ask(roomy, answer_format(HOSTILE[name]), max_tokens=50)
    assert monotonic() - begin < 30
    if isinstance(heard.answers[-1], Exception):
        assert isinstance(heard.error, BadField)
    assert ask(roomy, answer_format({"const": 1})).text() == "1"


def test_compilations_in_many_threads_leave_the_stack_size_alone(roomy: TextInstance) -> None:
    before = threading.stack_size()
    for number in range(40):  # more than are cached
        assert ask(roomy, answer_format({"const": number})).text() == str(number)
    assert threading.stack_size() == before


def test_one_schema_that_takes_long_is_compiled_at_a_time(roomy: TextInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread cannot be ended; more of them would take all cores."""
    with monkeypatch.context() as hurried:
        hurried.setattr(grammar, "COMPILE_S", 0.01)
        hurried.setattr(grammar, "TOKENIZER_S", 0.0)
        hurried.setattr(grammar, "MAX_INTERSECTED", 12)
        assert "longer than" in str(ask(roomy, answer_format(pattern_chain(12, lambda rest: rest))).error)
    assert isinstance(ask(roomy, answer_format({"const": "other"})).error, Unavailable)
    eventually(lambda: not isinstance(ask(roomy, answer_format({"const": "other"})).answers[-1], Exception))
