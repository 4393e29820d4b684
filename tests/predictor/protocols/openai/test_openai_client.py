"""The `openai` package against a running predictor: what it asks and how it reads the answers."""

import base64
import json
from typing import Any

import click
import numpy as np
import openai
import pytest
from tests.predictor.protocols.openai.conftest import client_of
from tests.serving import RunningServer

from platformctl.commands.service.infer import infer, infer_model
from platformctl.targets import Gateway

HELLO = [{"role": "user", "content": "hello"}]
ANSWER = "Hello! How can I help you today?"


@pytest.mark.parametrize("path", ["/v1", "/openai/v1"])
def test_a_chat_is_answered(speaking: RunningServer, path: str) -> None:
    with client_of(speaking, path) as client:
        told = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
    (choice,) = told.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert told.object == "chat.completion"
    assert told.usage is not None
    assert told.usage.total_tokens == told.usage.prompt_tokens + told.usage.completion_tokens > 10


def test_a_streamed_chat_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HELLO, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    said = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in said) == ANSWER
    assert said[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in said if choice.finish_reason] == ["stop"]
    assert len(said) > 4
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 4
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_choices_of_a_stream_are_told_apart(client: openai.OpenAI) -> None:
    how = {"model": "tiny", "prompt": ["One", "A pilot"], "n": 2, "temperature": 1.4, "seed": 5, "max_tokens": 12}
    whole = client.completions.create(**how)
    parts: dict[int, str] = {}
    for chunk in client.completions.create(**how, stream=True):
        for choice in chunk.choices:
            parts[choice.index] = parts.get(choice.index, "") + choice.text
    assert parts == {choice.index: choice.text for choice in whole.choices}
    assert sorted(parts) == [0, 1, 2, 3]


def test_a_completion_goes_on_where_the_prompt_ends(client: openai.OpenAI) -> None:
    told = client.completions.create(model="tiny", prompt="The quick brown", temperature=0, max_tokens=40)
    assert told.choices[0].text == " fox jumps over the lazy dog and runs into the dark forest."
    short = client.completions.create(model="tiny", prompt="The quick brown", temperature=0, max_tokens=2)
    assert short.choices[0].finish_reason == "length"
    stopped = client.completions.create(model="tiny", prompt="The quick", temperature=0, max_tokens=40, stop="s over")
    assert stopped.choices[0].text == " brown fox jump"


def test_logprobs_come_in_both_shapes(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, logprobs=True, top_logprobs=2, max_tokens=3
    )
    assert chat.choices[0].logprobs is not None
    entries = chat.choices[0].logprobs.content or []
    assert "".join(entry.token for entry in entries) == chat.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)
    old = client.completions.create(model="tiny", prompt="One", temperature=0, logprobs=1, max_tokens=3)
    assert old.choices[0].logprobs is not None
    assert "".join(old.choices[0].logprobs.tokens or []) == old.choices[0].text
    assert (old.choices[0].logprobs.text_offset or [None])[0] == 0


def test_models_are_listed_by_what_they_can(client: openai.OpenAI, speaking: RunningServer) -> None:
    assert [model.id for model in client.models.list()] == ["lengths", "looks", "plain", "tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    assert "adds" in speaking.get("/v1/models").json()["models"]
    assert speaking.get("/v1/models/tiny").json()["ready"] is True
    assert speaking.get("/v1/models/adds").json() == {"name": "adds", "ready": True}


def test_embeddings_come_in_order_as_floats_and_as_base64(client: openai.OpenAI, speaking: RunningServer) -> None:
    texts = ["abc", "b", "cc", "dddd", ""]
    told = client.embeddings.create(model="lengths", input=texts)  # this client asks for base64 by itself
    assert [row.embedding[0] for row in told.data] == [3, 1, 2, 4, 0]
    assert told.usage.prompt_tokens == 10
    plain = client.embeddings.create(model="lengths", input="abc", encoding_format="float")
    assert plain.data[0].embedding == [3, ord("a"), 1.5]
    raw = speaking.post("/v1/embeddings", {"model": "lengths", "input": "abc", "encoding_format": "base64"}).json()
    assert np.frombuffer(base64.b64decode(raw["data"][0]["embedding"]), "<f4").tolist() == [3, ord("a"), 1.5]


def test_a_vision_model_gets_the_parts_of_the_first_user_message(client: openai.OpenAI) -> None:
    url = "data:image/png;base64," + base64.b64encode(b"12345").decode()
    parts = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [
        {"role": "system", "content": "short"}, {"role": "user", "content": parts}, {"role": "user", "content": "more"}
    ]  # fmt: skip
    told = client.chat.completions.create(model="looks", messages=messages, max_tokens=7)  # type: ignore[arg-type]
    seen = json.loads(told.choices[0].message.content or "")
    assert (seen["prompt"], seen["images"], seen["videos"]) == ("what is this", [5], [])
    assert seen["messages"][1]["content"][1] == {"type": "image", "image": 0}
    assert seen["sampling"] == {"max_tokens": 7}
    assert told.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("how", "param", "told"),
    [
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools",
            "the chat template of model 'tiny' takes none",
        ),
        ({"response_format": {"type": "xml"}}, "response_format", "type text, json_object or json_schema"),
        ({"temperature": 9}, "temperature", "must be a number from 0 to 2"),
        ({"max_completion_tokens": 5000}, "max_tokens", "max_tokens = 5000, must be at most"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
        ({"extra_body": {"tempratur": 1}}, "tempratur", "is not a field of this request"),
        ({"n": 100}, "n", "n = 100, must be at most 32"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    client: openai.OpenAI, how: dict[str, object], param: str, told: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, **how)  # type: ignore[call-overload]
    assert refused.value.param == param
    assert told in refused.value.message
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize("how", [{"echo": True}, {"best_of": 3}, {"suffix": "x"}])
def test_what_completions_cannot_do_is_refused(client: openai.OpenAI, how: dict[str, object]) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{next(iter(how))} is not supported, must be"):
        client.completions.create(model="tiny", prompt="One", **how)  # type: ignore[call-overload]


def test_what_a_template_refuses_is_refused_before_a_stream_begins(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="role must be system, user or assistant"):
        client.chat.completions.create(model="tiny", messages=[{"role": "judge", "content": "x"}], stream=True)  # type: ignore[list-item]
    with pytest.raises(openai.BadRequestError, match="has no chat template: call /v1/completions") as plain:
        client.chat.completions.create(model="plain", messages=HELLO)
    assert plain.value.code == "task_not_supported"


def test_a_model_that_is_not_there_or_cannot_is_told(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="model 'tinny' does not exist; did you mean tiny") as retrieved:
        client.models.retrieve("tinny")
    assert (retrieved.value.code, retrieved.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="must be 3 or unset"):
        client.embeddings.create(model="lengths", input="x", dimensions=2)


def test_a_text_of_platformctl_is_a_chat_and_without_a_template_a_completion(
    speaking: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for model, prompt in (("tiny", "hello"), ("plain", "The quick")):  # sampled, so any text
        with click.Context(infer):
            infer_model(Gateway(speaking.url), model, "", "text", prompt, "", "", 60.0)
        said = capsys.readouterr().out
        assert said.strip()
        assert not said.startswith(("{", prompt)), "the prompt is not repeated"


def test_a_route_without_v1_is_404_with_the_right_one(speaking: RunningServer) -> None:
    for method, path in (("POST", "/chat/completions"), ("GET", "/models"), ("GET", "/models/tiny")):
        answer = speaking.request(method, path)
        message = f"no route {method} {path}; did you mean /v1{path}? A base_url must end in /v1"
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        assert (answer.status, answer.json()) == (404, {"error": error})


DECLARE = 'to embed, declare OUTPUTS = {"embedding": ("FP32", [-1, 64])} in its model.py'
EMBEDS = "does not generate text; it serves embeddings: POST /v1/embeddings"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", {"model": "lengths", "messages": HELLO}, f"model 'lengths' {EMBEDS}"),
        ("responses", {"model": "lengths", "input": "x"}, f"model 'lengths' {EMBEDS}"),
        ("completions", {"model": "lengths", "prompt": "x"}, f"model 'lengths' {EMBEDS}"),
        ("completions", {"model": "looks", "prompt": "x"},
         "model 'looks' does not complete text; it serves chat: POST /v1/chat/completions"),
        ("embeddings", {"model": "tiny", "input": "x"},
         "model 'tiny' does not embed text; it serves chat: POST /v1/chat/completions"),
        ("embeddings", {"model": "plain", "input": "x"},
         "model 'plain' does not embed text; it serves completions: POST /v1/completions"),
        ("embeddings", {"model": "rows", "input": "x"},
         f"model 'rows' does not embed text; it serves tensors: POST /v2/models/rows/infer; {DECLARE}"),
        ("embeddings", {"model": "rows_of_any", "input": "x"},
         "model 'rows_of_any' does not embed text; it serves tensors: POST /v2/models/rows_of_any/infer; "
         f"{DECLARE} and INPUTS = {{\"text\": (\"BYTES\", [-1])}}"),
        ("score", {"model": "tiny", "text_1": "x", "text_2": "y"},
         "model 'tiny' does not score pairs of texts; it serves chat: POST /v1/chat/completions"),
        ("chat/completions", {"model": "adds", "messages": HELLO},
         "model 'adds' does not generate text; it serves tensors: POST /v2/models/adds/infer"),
    ],
)  # fmt: skip
def test_a_task_that_a_model_does_not_have_has_a_code_and_the_route_to_call(
    speaking: RunningServer, path: str, body: dict[str, Any], message: str
) -> None:
    answer = speaking.post(f"/v1/{path}", body)
    error = {"message": message, "type": "invalid_request_error", "param": "model", "code": "task_not_supported"}
    assert (answer.status, answer.json()) == (400, {"error": error})
