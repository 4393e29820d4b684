"""The codecs without a server: whatever comes is read or refused with a field, and media go where they belong."""

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.tensors import TensorSpec
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.openai.request import read_chat, read_completion, read_embedding, read_object
from pilotlight_predictor.protocols.openai.tensors import chat_inputs, prompt_inputs, text_capabilities

ALL = frozenset({"messages", "prompt", "images", "videos", "sampling_parameters", "stream", "tokens", "text_input"})
FIELDS = (
    "model", "messages", "prompt", "input", "stream", "stream_options", "temperature", "top_p", "n", "seed", "stop",
    "logprobs", "top_logprobs", "max_tokens", "max_completion_tokens", "logit_bias", "tools", "response_format",
    "echo", "best_of", "dimensions", "encoding_format", "user", "whatever",
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
parts = st.fixed_dictionaries({}, optional={"type": st.sampled_from(["text", "image_url", "video_url"]) | json_values})
contents = json_values | st.lists(parts)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"])}, optional={"content": contents})
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values), messages | json_values)
def test_any_document_is_read_or_refused_in_a_sentence(document: dict[str, Any], told: Any) -> None:
    for read, key in ((read_chat, "messages"), (read_completion, "prompt"), (read_embedding, "input")):
        with suppress(BadRequest):
            asked: Any = read({**document, key: told})
            if key == "messages":
                chat_inputs(asked, ALL, False)
            elif key == "prompt":
                [prompt_inputs(asked, prompt, ALL) for prompt in asked.prompts]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_a_bad_request(body: bytes) -> None:
    with suppress(BadRequest):
        assert isinstance(read_object(body), dict)


def looked(content: Any, **how: Any) -> dict[str, Any]:
    asked = read_chat({"messages": [{"role": "user", "content": content}]})
    return chat_inputs(asked, ALL, how.get("urls", False))


def test_addresses_are_passed_on_only_when_allowed() -> None:
    film = [{"type": "video_url", "video_url": {"url": "https://example.com/film.mp4"}}]
    with pytest.raises(BadField, match="--media-urls"):
        looked(film)
    assert looked(film, urls=True)["videos"].array.tolist() == [b"https://example.com/film.mp4"]
    with pytest.raises(BadField, match="--media-urls"):
        looked([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], urls=True)


HIDDEN = [
    {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
    {"type": "image_url", "image_url": "https://example.com/x.png"},
    {"type": "video_url", "video_url": {"url": "/etc/passwd"}},
    {"type": "image", "image": "HTTPS://example.com/x.png"},
    {"type": "text", "text": "look", "image_url": {"url": "http://example.com/x.png"}},
    {"type": "text", "text": {"image": ["file:/etc/passwd"]}},
    {"type": "audio_url", "audio_url": {"url": "ftp://example.com/x.wav"}},
]


@pytest.mark.parametrize("names", [ALL, frozenset({"messages"})])
@pytest.mark.parametrize("part", HIDDEN)
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_no_message_and_no_model_lets_an_address_through(names: frozenset[str], part: Any, role: str) -> None:
    first = {"role": "user", "content": "hello"}
    asked = read_chat({"messages": [first, {"role": role, "content": [{"type": "text", "text": "see"}, part]}]})
    with pytest.raises(BadField, match=r"messages\[1\]\.content\[1\].* must be a data: URL.*--media-urls"):
        chat_inputs(asked, names, False)


def test_addresses_may_be_spoken_of() -> None:
    said = [{"type": "text", "text": "https://example.com"}, {"type": "image", "image": "data:image/png;base64,"}]
    assert json.loads(looked(said)["messages"].array[0])[0]["content"] == said


def test_data_is_decoded_and_its_place_kept() -> None:
    url = "data:image/jpeg;base64," + base64.b64encode(b"\x00\xff").decode()
    seen = looked([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "look"}])
    assert seen["images"].array.tolist() == [b"\x00\xff"]
    assert seen["prompt"].array.tolist() == [b"look"]
    assert json.loads(seen["messages"].array[0])[0]["content"][0] == {"type": "image", "image": 0}
    with pytest.raises(BadField, match="not a base64 data: URL"):
        looked([{"type": "image_url", "image_url": {"url": "data:image/png;base64,###"}}])


def test_a_model_tells_by_its_tensors_what_it_can() -> None:
    text = TensorSpec("text_output", "BYTES", (-1,))
    asks = TensorSpec("text_input", "BYTES", (1,))
    vector = TensorSpec("embedding", "FP32", (-1, 384))
    assert text_capabilities([asks], [text])[:2] == (False, True)
    assert text_capabilities([TensorSpec("messages", "BYTES", (1,)), asks], [text])[:2] == (True, True)
    assert text_capabilities([TensorSpec("text", "BYTES", (-1, 1))], [vector]).embeds is not None
    assert not text_capabilities([TensorSpec("x", "FP32", (-1, 4))], [vector]).any
    assert not text_capabilities([], []).any


def test_both_names_of_the_limit_are_one() -> None:
    told = {"messages": [{"role": "user", "content": "x"}]}
    assert read_chat({**told, "max_completion_tokens": 7}).sampling == {"max_tokens": 7}
    with pytest.raises(BadField, match="differ"):
        read_chat({**told, "max_completion_tokens": 7, "max_tokens": 8})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "input is missing"),
        ({"input": []}, "input is empty"),
        ({"input": [3, 4]}, "input must be a string or a list of strings, not tokens"),
        ({"inputs": "x"}, "inputs is not a field of this request"),
    ],
)
def test_texts_to_embed_that_are_not_there_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadField, match=f"^{words}$"):
        read_embedding({"model": "m", **fields})


def test_only_an_assistant_may_leave_the_content_out_or_null() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    asked = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]
    assert read_chat({"messages": [*asked, {"role": "assistant", "content": None}]}).messages is not None
    for message in ({"role": "user", "contnt": "x"}, {"role": "assistant"}, {"role": "system", "tool_calls": []}):
        with pytest.raises(BadField, match=r"^messages\[2\]\.content is missing$"):
            read_chat({"messages": [*asked, message]})
    with pytest.raises(BadField, match=r"^messages\[0\]\.content must be text or a list of parts with a type$"):
        read_chat({"messages": [{"role": "user", "content": None}]})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x is not a field"),
        ({"stop": {"a": 1}}, "stop = an object, must be a string or a list"),
        ({"logit_bias": {str(token): 1 for token in range(5000)}}, "logit_bias = an object, must be .* at most 1024"),
    ],
)
def test_what_would_be_lost_or_cost_everybody_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadField, match=words):
        read_chat({"messages": [{"role": "user", "content": "x"}], **fields})
