"""Tools, response formats and the Responses API, asked by OpenAI's own client."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]
import openai
import pydantic
import pytest
from openai.lib.streaming.responses import ResponseTextDeltaEvent
from tests.predictor.backends.text.tiny import text_model
from tests.predictor.backends.text.tools import TIME, WEATHER, tool_model
from tests.predictor.protocols.openai.conftest import START_S, client_of
from tests.serving import RunningServer

HELLO: Any = [{"role": "user", "content": "hello"}]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
FLAT: Any = {"type": "function", **WEATHER["function"]}
# Says what it was given.
TAKES = """
import json
import numpy as np

INPUTS = {"messages": ("BYTES", [1]), "tools": ("BYTES", [1])}
OUTPUTS = {"text_output": ("BYTES", [1]), "tool_calls": ("BYTES", [1])}


class Model:
    def execute(self, inputs):
        tools = json.loads(inputs["tools"][0])
        function = {"name": tools[0]["function"]["name"], "arguments": json.dumps({"given": len(tools)})}
        calls = [{"index": 0, "id": "1", "type": "function", "function": function}]
        return {"text_output": np.array(["hm"], object), "tool_calls": np.array([json.dumps(calls)], object)}
"""
TAKES_CONFIG = """
backend: "python"
input [
  { name: "messages" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "tools" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "tool_calls" data_type: TYPE_STRING dims: [ 1 ] }
]
"""


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["adult", "child"]
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, text_models: Path, serve_session: Callable[..., RunningServer]
) -> RunningServer:
    folder = tmp_path_factory.mktemp("tools")
    (folder / "tiny").mkdir()
    tool_model(text_model(text_models), folder / "tiny" / "1")
    (folder / "takes" / "1").mkdir(parents=True)
    (folder / "takes" / "1" / "model.py").write_text(TAKES)
    (folder / "takes" / "config.pbtxt").write_text(TAKES_CONFIG)
    server = serve_session(folder, "--threads", "1", "--warmup", "none", ready=False)
    server.wait_until(lambda: server.get("/v2/health/ready").status == 200, "ready", START_S)
    return server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(server) as made:
        yield made


def check_arguments(text: str) -> None:
    jsonschema.validate(json.loads(text), WEATHER["function"]["parameters"])


def test_a_tool_is_called_and_its_result_is_sent_back(client: openai.OpenAI) -> None:
    tools: Any = [WEATHER, TIME]
    told = client.chat.completions.create(model="tiny", messages=HELLO, tools=tools, tool_choice=NAMED, max_tokens=300)
    (choice,) = told.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    check_arguments(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages: Any = [*HELLO, choice.message.model_dump(exclude_none=True), result]
    after = client.chat.completions.create(model="tiny", messages=messages, tools=tools, max_tokens=5)
    assert after.choices[0].finish_reason in ("length", "stop")


def test_a_stream_carries_calls(client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required"}
    with client.chat.completions.stream(**how, parallel_tool_calls=False, max_tokens=300, n=2) as stream:
        choices = stream.get_final_completion().choices
    assert len(choices) == 2
    for choice in choices:
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or []
        check_arguments(call.function.arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_of_pydantic_is_followed(client: openai.OpenAI, stream: bool) -> None:
    how: Any = {"model": "tiny", "messages": HELLO, "response_format": Person, "max_tokens": 300, "temperature": 1.5}
    if stream:
        with client.chat.completions.stream(**how) as events:
            told = events.get_final_completion()
    else:
        told = client.chat.completions.parse(**how)
    assert isinstance(told.choices[0].message.parsed, Person)


def test_json_object_is_an_object(client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "messages": HELLO, "response_format": {"type": "json_object"}}
    told = client.chat.completions.create(**how, max_tokens=1500, n=3, seed=2, temperature=0.7)
    whole = [choice.message.content for choice in told.choices if choice.finish_reason == "stop"]
    assert all(isinstance(json.loads(text or ""), dict) for text in whole)
    assert all((choice.message.content or "").startswith("{") for choice in told.choices)


def test_a_python_model_gets_the_tools_it_declares(client: openai.OpenAI) -> None:
    tools: Any = [TIME, WEATHER]
    (choice,) = client.chat.completions.create(model="takes", messages=HELLO, tools=tools).choices
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {"given": 2})  # type: ignore[union-attr]
    assert choice.message.content == "hm"
    with pytest.raises(openai.BadRequestError, match="the model has no input 'tool_choice'"):
        client.chat.completions.create(model="takes", messages=HELLO, tools=tools, tool_choice="required")
    with pytest.raises(openai.BadRequestError, match="the model has no input 'response_format'"):
        client.chat.completions.create(model="takes", messages=HELLO, response_format={"type": "json_object"})


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


def answer(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", **fields}}}


@pytest.mark.parametrize(
    ("how", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [TIME] * 129}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        (function(name="a b"), "tools[0].function.name"),
        (function(parameters=3), "tools[0].function.parameters"),
        (function(strict="yes"), "tools[0].function.strict"),
        (function(description=3), "tools[0].function.description"),
        (function(params={}), "tools[0].function.params"),
        ({"tools": [TIME, TIME]}, "tools[1].function.name"),
        ({"tools": [TIME], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TIME], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (answer(name="a b"), "response_format.json_schema.name"),
        (answer(schema=[]), "response_format.json_schema.schema"),
        (answer(strict=1), "response_format.json_schema.strict"),
        (answer(form={}), "response_format.json_schema.form"),
        (answer(schema={"type": "array", "uniqueItems": True}), "response_format"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 9999}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_one_sentence_with_its_name(
    client: openai.OpenAI, how: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "stream": stream, **how})
    assert refused.value.param == param
    assert param in refused.value.message
    assert "\n" not in refused.value.message


def test_completions_take_no_tools(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="tools is not supported, must be"):
        client.completions.create(model="tiny", prompt="x", extra_body={"tools": [TIME]})


def test_a_response_has_text_and_usage(client: openai.OpenAI) -> None:
    told = client.responses.create(
        model="tiny", instructions="Be brief.", input="hello", max_output_tokens=1, temperature=0, metadata={"a": "b"}
    )
    assert told.status == "incomplete"
    assert told.incomplete_details is not None
    assert told.incomplete_details.reason == "max_output_tokens"
    assert told.output_text
    assert told.usage is not None
    assert told.usage.output_tokens == 1
    assert (told.instructions, told.metadata, told.max_output_tokens) == ("Be brief.", {"a": "b"}, 1)


def test_a_response_is_the_text_of_the_same_chat(client: openai.OpenAI) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    chat = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, max_tokens=20)
    told = client.responses.create(model="tiny", input=parts, temperature=0, max_output_tokens=20)
    assert told.output_text == chat.choices[0].message.content
    events = list(client.responses.create(model="tiny", input=parts, temperature=0, max_output_tokens=20, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == told.output_text
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", f"response.{told.status}",
    ]  # fmt: skip


def test_a_response_follows_a_schema(client: openai.OpenAI) -> None:
    told = client.responses.parse(model="tiny", input="hello", text_format=Person, max_output_tokens=300)
    assert isinstance(told.output_parsed, Person)
    with client.responses.stream(model="tiny", input="hello", text_format=Person, max_output_tokens=300) as stream:
        texts = [event.delta for event in stream if isinstance(event, ResponseTextDeltaEvent)]
        assert isinstance(stream.get_final_response().output_parsed, Person)
    assert len(texts) > 1


def test_a_response_calls_a_function_and_takes_its_output(client: openai.OpenAI) -> None:
    how: Any = {"model": "tiny", "tools": [FLAT], "max_output_tokens": 300}
    choice: Any = {"type": "function", "name": "get_weather"}
    told = client.responses.create(**how, input="hello", tool_choice=choice)
    call: Any = told.output[0]
    assert len(told.output) == 1
    assert (told.status, call.type) == ("completed", "function_call")
    check_arguments(call.arguments)
    with client.responses.stream(**how, input="hello", tool_choice=choice) as stream:
        kinds = [event.type for event in stream]
        streamed: Any = stream.get_final_response().output[0]
    check_arguments(streamed.arguments)
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= set(kinds)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items: Any = [*HELLO, call.model_dump(exclude_none=True), output]
    assert client.responses.create(**how, input=items, tool_choice="none").output_text


@pytest.mark.parametrize(
    ("how", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"truncation": "auto"}, "truncation"),
        ({"nonsense": 1}, "nonsense"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [*HELLO, {"type": "item_reference", "id": "x"}]}, "input[1]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "["}]}, "input[0].tool_calls[0].arguments"),
        ({"instructions": 3}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [3]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}}, "text.format"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_wrong_field_of_a_response_has_its_own_name(client: openai.OpenAI, how: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="tiny", input="hello", extra_body=how)
    assert refused.value.param == param
    assert param in refused.value.message
