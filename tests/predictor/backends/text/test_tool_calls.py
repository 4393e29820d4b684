"""Tool calls of the text backend: formats, the parser of a stream, and calls that are enforced."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.backends.text.conftest import Heard, bytes_tensor, text_instance
from tests.predictor.backends.text.tools import TEMPLATES, TIME, WEATHER, tool_model

from pilotlight_predictor.backends.text.tool_calls import FORMATS, ToolCallParser, find_format
from pilotlight_predictor.core.generation_params import BadField, read_chat_options

BY_NAME = {form.name: form for form in FORMATS}
OPTIONS = read_chat_options({"tools": [WEATHER, TIME]})
ONE = '{"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}'
TWO = '{"name": "get_time", "arguments": {}}'
# Text → content, names of the calls.
BAD = '<tool_call>{"name": "get_time", "arguments": 3}</tool_call>'
OTHER = '<tool_call>{"name": "other"}</tool_call>'
TEXTS: dict[str, list[tuple[str, str, list[str]]]] = {
    "hermes": [
        (f"<tool_call>\n{ONE}\n</tool_call>", "", ["get_weather"]),
        (f"See: <tool_call>{ONE}</tool_call>\n<tool_call>{TWO}</tool_call>", "See: ", ["get_weather", "get_time"]),
        (f"<tool_call>{ONE}", "", ["get_weather"]),
        ("a <tool b", "a <tool b", []),
        ("<tool_call>{oops}</tool_call> then", "<tool_call>{oops}</tool_call> then", []),
        (OTHER, OTHER, []),
        (BAD, BAD, []),
        ('<tool_call>{"name": "get_time", "arguments": "{}"}</tool_call>', "", ["get_time"]),
        ("plain text", "plain text", []),
        ("", "", []),
    ],
    "hermes_list": [
        (f"<tool_call>[{ONE}, {TWO}]</tool_call>", "", ["get_weather", "get_time"]),
        ("<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>", []),
    ],
    "mistral": [(f"[TOOL_CALLS] [{ONE}]", "", ["get_weather"]), ("[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", [])],
    "llama3_json": [
        ('{"name": "get_time", "parameters": {}}', "", ["get_time"]),
        (' \n{"name": "get_time", "parameters": {}}', "", ["get_time"]),
        ('{"not": "a call"}', '{"not": "a call"}', []),
        ('It is {"name": "get_time", "parameters": {}}', 'It is {"name": "get_time", "parameters": {}}', []),
    ],
}
CASES = [(name, *case) for name, cases in TEXTS.items() for case in cases]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}: {case[1][:30]!r}")
@given(data=st.data())
def test_a_text_is_parsed_alike_however_it_is_cut(case: tuple[str, str, str, list[str]], data: st.DataObject) -> None:
    name, text, content, names = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parser, parsed = ToolCallParser(BY_NAME[name], OPTIONS), ""
    calls: list[dict[str, Any]] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        piece, found = parser.push(text[begin:end], last=False)
        parsed, calls = parsed + piece, calls + found
    piece, found = parser.push("", last=True)
    calls += found
    assert parsed + piece == content
    assert [call["function"]["name"] for call in calls] == names
    assert [call["index"] for call in calls] == list(range(len(names)))
    assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)


def test_a_call_nested_too_deeply_stays_text() -> None:
    for depth in (*range(900, 1000), 100_000):  # beside Python's limit: what can be read may be too deep to be written
        parser = ToolCallParser(BY_NAME["hermes"], OPTIONS)
        text = f'<tool_call>{{"name": "none", "arguments": {{"a": {"[" * depth}{"]" * depth}}}}}</tool_call>'
        assert parser.push(text, last=True) == (text, [])


def test_without_parallel_calls_only_the_first_counts() -> None:
    parser = ToolCallParser(
        BY_NAME["hermes"], read_chat_options({"tools": [WEATHER, TIME], "parallel_tool_calls": False})
    )
    content, calls = parser.push(f"<tool_call>{ONE}</tool_call><tool_call>{TWO}</tool_call>", last=True)
    assert (content, len(calls)) == ("", 1)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_format_follows_from_the_template(name: str) -> None:
    assert find_format(TEMPLATES[name]) is BY_NAME[name]


@pytest.mark.parametrize("sign", ["<function=", "<arg_key>", "[ARGS]"])
def test_a_template_with_the_same_markers_but_no_json_has_no_format(sign: str) -> None:
    assert find_format(f"{TEMPLATES['hermes']} {sign}") is None


def chat(folder: Path, *, stream: bool = False, sampling: dict[str, Any] | None = None, **fields: Any) -> Heard:
    instance = text_instance(folder)
    messages = fields.pop("messages", [{"role": "user", "content": "hello"}])
    heard = Heard(
        None, messages=json.dumps(messages).encode(), stream=stream, **{"max_tokens": 300, "seed": 5} | (sampling or {})
    )
    heard.request.inputs.update({name: bytes_tensor(json.dumps(value).encode()) for name, value in fields.items()})
    instance.begin([heard])
    heard.wait()
    instance.close()
    return heard


def calls_of(heard: Heard) -> list[dict[str, Any]]:
    return [call for answer in heard.answers for row in answer["tool_calls"].array for call in json.loads(row)]


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_called_in_the_format_of_the_template(
    tiny: Path, tmp_path: Path, name: str, stream: bool
) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    heard = chat(tool_model(tiny, tmp_path / "m", name), stream=stream, tools=[TIME, WEATHER], tool_choice=choice)
    (call,) = calls_of(heard)
    assert call["function"]["name"] == "get_weather"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Paris", "Köln")
    assert 1 <= arguments["days"] <= 9
    assert (heard.text(), heard.value("finish_reason")) == ("", b"tool_calls")


def test_a_special_token_as_marker_is_found(tiny: Path, tmp_path: Path) -> None:
    folder = tool_model(tiny, tmp_path / "m", "mistral")
    for name in ("tokenizer.json", "tokenizer_config.json"):  # a token of the vocabulary becomes the marker
        (folder / name).write_text((folder / name).read_text().replace("<|system|>", "[TOOL_CALLS]"))
    (folder / "chat_template.jinja").write_text(TEMPLATES["mistral"].replace("<|system|>", ""))
    heard = chat(folder, tools=[TIME], tool_choice="required", parallel_tool_calls=False)
    assert [call["function"]["name"] for call in calls_of(heard)] == ["get_time"]
    assert len(calls_of(heard)[0]["id"]) == 9


def test_one_of_several_tools_is_called_when_required(tiny: Path, tmp_path: Path) -> None:
    heard = chat(
        tool_model(tiny, tmp_path / "m"), tools=[TIME, WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = calls_of(heard)
    assert call["function"]["name"] in ("get_time", "get_weather")


def test_with_auto_an_answer_follows_the_schema_or_calls(tiny: Path, tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a", "b"]}}}
    heard = chat(tool_model(tiny, tmp_path / "m"), tools=[TIME], response_format=form)
    assert heard.text() in ('"a"', '"b"') or calls_of(heard)


def test_without_a_call_the_text_is_that_of_a_chat(tiny: Path, tmp_path: Path) -> None:
    folder = tool_model(tiny, tmp_path / "m")
    plain = chat(folder, sampling={"temperature": 0, "max_tokens": 12})
    for choice in ("none", "auto"):
        heard = chat(folder, tools=[TIME], tool_choice=choice, sampling={"temperature": 0, "max_tokens": 12})
        assert calls_of(heard) == []
        assert (heard.text() == plain.text()) or choice == "auto"  # the tools are in the prompt


def test_calls_of_earlier_messages_reach_the_template_as_objects(tiny: Path, tmp_path: Path) -> None:
    call: dict[str, Any] = {
        "id": "abc",
        "type": "function",
        "function": {"name": "get_time", "arguments": '{"zone": "CET"}'},
    }
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "noon"},
    ]
    with_object = chat(tool_model(tiny, tmp_path / "m"), messages=messages, tools=[TIME], sampling={"max_tokens": 1})
    call["function"]["arguments"] = json.dumps('{"zone": "CET"}')  # a string within a string: longer if it stayed one
    refused = chat(tmp_path / "m", messages=messages, tools=[TIME])
    assert with_object.value("num_output_tokens") == 1
    assert "messages[1].tool_calls[0].function.arguments" in str(refused.error)


@pytest.mark.parametrize(
    ("form", "problem"), [("unknown", "none of the formats hermes"), ("none", "takes none")], ids=["unknown", "none"]
)  # fmt: skip
def test_tools_are_refused_by_a_template_that_has_none(tiny: Path, tmp_path: Path, form: str, problem: str) -> None:
    folder = tiny if form == "none" else tool_model(tiny, tmp_path / "m", form)
    error = chat(folder, tools=[TIME], sampling={"max_tokens": 4}).error
    assert isinstance(error, BadField)
    assert error.field == "tools"
    assert problem.split()[-1] in str(error)


def test_parameters_that_cannot_be_enforced_are_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "string"}}}}
    error = chat(tool_model(tiny, tmp_path / "m"), tools=[tool], tool_choice="required").error
    assert isinstance(error, BadField)
    assert error.field == "tools"
    assert "not" in str(error)


@pytest.mark.parametrize("name", ["tools", "tool_choice", "parallel_tool_calls", "response_format"])
def test_an_input_that_is_no_json_is_refused_by_name(tiny: Path, name: str) -> None:
    instance = text_instance(tiny)
    heard = Heard("x")
    heard.request.inputs[name] = bytes_tensor(b"{")
    instance.begin([heard])
    assert f"input '{name}' must be JSON" in str(heard.wait().error)
    instance.close()
