"""Requests before they are sent: which fields a network takes, and what it would not, told by name."""

from typing import Any

import pytest

from pilotlight.errors import PlatformError, UsageError
from platformctl.microservice import chat_fields, infer_request

PICTURE = chat_fields.message("what is it", ["https://example.com/a.jpg"])
PLAIN = chat_fields.message("hello")


def body(message: dict[str, Any] = PLAIN, **more: Any) -> dict[str, Any]:
    return {"messages": [message], **more}


def test_the_fields_of_sampling_differ_by_network() -> None:
    assert {"max_tokens", "top_p", "temperature"} <= chat_fields.sampling_fields("cosmos-rl").keys()
    assert {"max_tokens", "top_p", "temperature"} <= chat_fields.sampling_fields("pilotlight").keys()
    predict = chat_fields.sampling_fields("cosmos-predict2.5").keys()
    assert {"guidance", "num_steps", "seed", "negative_prompt", "inference_type", "num_output_frames"} <= predict
    assert not {"max_tokens", "top_p", "temperature"} & predict


@pytest.mark.parametrize(
    ("arch", "request_body"),
    [
        ("cosmos-rl", body(PICTURE, max_tokens=5, temperature=9.5)),
        ("cosmos-rl", body(chat_fields.message("x", videos=["/data/a.mp4"]), model="any", stop=["."])),
        ("cosmos-predict2.5", body(PLAIN, guidance=7, seed=1)),
        ("pilotlight", body(PLAIN, seed=1)),
        ("pilotlight", {"messages": [PLAIN, {"role": "assistant", "content": "hi"}, PLAIN]}),
    ],
)
def test_what_fits_passes_also_where_a_value_is_out_of_bounds(arch: str, request_body: dict[str, Any]) -> None:
    chat_fields.check(arch, request_body)


@pytest.mark.parametrize(
    ("arch", "request_body", "told"),
    [
        ("cosmos-rl", body(PLAIN), "must have an image_url or a video_url"),
        ("cosmos-rl", body(chat_fields.message("x", ["data:image/png;base64,AA"])), "data: URIs are not taken"),
        ("cosmos-rl", body(PICTURE, guidance=7), "guidance is a field of cosmos-predict2.5"),
        ("cosmos-rl", body(PICTURE, num_steps=7, negative_prompt="x"), "num_steps .*; negative_prompt is a field of"),
        ("cosmos-predict2.5", body(PLAIN, max_tokens=7), "max_tokens is a field of cosmos-rl, nvila, text$"),
        ("cosmos-rl", body(PICTURE, seed=7), "seed is a field of cosmos-predict2.5, nvila, text$"),
        ("cosmos-rl", {"messages": [PICTURE, PICTURE]}, "2 messages of the user, and only the first"),
        ("pilotlight", {}, "messages must be a list"),
        ("pilotlight", {"messages": [{"role": "system", "content": "x"}]}, "with a message of the user"),
        ("pilotlight", body(PLAIN, stream=True), "stream must be left out"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arch: str, request_body: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        chat_fields.check(arch, request_body)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [("max_tokens", "999999999", 999999999), ("temperature", "9.75", 9.75), ("top_p", "1", 1), ("seed", "-3", -3)],
)
def test_values_are_taken_as_they_were_typed_and_never_clamped(field: str, text: str, value: object) -> None:
    found = chat_fields.parse_value(field, text, chat_fields.sampling_fields("text")[field])
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("field", "text"), [("max_tokens", "1.5"), ("max_tokens", "many"), ("top_p", "true"), ("top_p", "NaN")]
)
def test_what_is_of_another_type_is_refused(field: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{field} = "):
        chat_fields.parse_value(field, text, chat_fields.sampling_fields("text")[field])


def test_a_network_that_nobody_here_knows_is_asked_as_a_text_model() -> None:
    assert chat_fields.sampling_fields("of-another-script").keys() == chat_fields.sampling_fields("text").keys()
    chat_fields.check("of-another-script", body(PLAIN, max_tokens=5))


def test_media_come_in_openais_shape() -> None:
    made = chat_fields.message("what", ["a"], ["b"])
    assert [item["type"] for item in made["content"]] == ["image_url", "video_url", "text"]
    assert chat_fields.media_urls(made) == ["a", "b"]


def test_an_answer_without_a_text_is_told() -> None:
    with pytest.raises(PlatformError, match=r"without choices\[0\]"):
        infer_request.message_content({"choices": []})
    assert infer_request.message_content({"choices": [{"message": {"content": "hi"}}]}) == "hi"
