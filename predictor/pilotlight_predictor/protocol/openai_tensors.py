"""What a model can be asked by the OpenAI dialect, and the inputs that are made for it. Pure.

A model tells by its tensors: `messages` makes it one that chats, `text_input` one that completes, a text in and one
vector out one that embeds. The text backend has the first two; a Python model may have any of them (docs/openai.md).
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pilotlight_predictor.generation import BadField
from pilotlight_predictor.inference import Inputs, RequestedOutput
from pilotlight_predictor.protocol.openai_request import Prompt, TextAsked
from pilotlight_predictor.tensors import Tensor, TensorSpec

TOLD: Final = ("text_output", "finish_reason", "index", "num_input_tokens", "num_output_tokens", "logprobs")
MEDIA: Final = {"image_url": "images", "video_url": "videos"}
ADDRESS: Final = re.compile(r"\s*[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
WEB: Final = ("http://", "https://")
FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})


class Abilities(NamedTuple):
    """`text` is the output with what is said; `embeds` the input and the output of a model that embeds."""

    chats: bool
    completes: bool
    text: str
    embeds: tuple[TensorSpec, TensorSpec] | None

    @property
    def any(self) -> bool:
        return self.chats or self.completes or self.embeds is not None


def abilities(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Abilities:
    takes = {spec.name for spec in inputs if spec.datatype == "BYTES"}
    says = [spec.name for spec in outputs if spec.datatype == "BYTES"]
    text = "text_output" if "text_output" in says else says[0] if len(says) == 1 else ""
    chats, completes = bool(text) and "messages" in takes, bool(text) and "text_input" in takes
    return Abilities(chats, completes, text, None if chats or completes else _embeds(inputs, outputs))


def _embeds(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[TensorSpec, TensorSpec] | None:
    needed = [spec for spec in inputs if not spec.optional]
    vectors = [spec for spec in outputs if spec.datatype in FLOATS]
    if len(needed) != 1 or needed[0].datatype != "BYTES" or len(vectors) != 1 or len(vectors[0].shape) != 2:
        return None
    return needed[0], vectors[0]


def wanted(outputs: Sequence[TensorSpec], text: str) -> tuple[RequestedOutput, ...]:
    """What of its outputs is needed for an answer."""
    return tuple(RequestedOutput(spec.name) for spec in outputs if spec.name == text or spec.name in TOLD)


def prompt_inputs(asked: TextAsked, prompt: Prompt, names: frozenset[str]) -> Inputs:
    """Of a completion; `names` are the inputs that the model has."""
    if isinstance(prompt, str):
        first = {"text_input": _text(prompt)}
    elif "tokens" in names:
        if not all(0 <= token < 2**31 for token in prompt):
            raise BadField("prompt", "prompt has tokens outside the vocabulary")
        first = {"tokens": Tensor("INT32", np.array(prompt, "<i4"))}
    else:
        raise BadField("prompt", "prompt is a list of tokens, must be text for this model")
    return first | _further(asked, names)


def chat_inputs(asked: TextAsked, names: frozenset[str], media_urls: bool) -> Inputs:
    """Of a chat. Images and videos are those of the first user message, and so is `prompt`; `messages` has all."""
    messages = asked.messages or ()
    check_addresses(messages, media_urls)
    inputs: Inputs = {"messages": Tensor("BYTES", np.array([msgspec.json.encode(messages)], dtype=object))}
    told = next((message for message in messages if message["role"] == "user"), {})
    parts = told.get("content") or ""
    if isinstance(parts, list) and {"images", "videos"} & names:
        media, parts = _media(parts, media_urls)
        shown = [{**message, "content": parts} if message is told else message for message in messages]
        inputs["messages"] = Tensor("BYTES", np.array([msgspec.json.encode(shown)], dtype=object))
        inputs |= {name: Tensor("BYTES", _objects(found)) for name, found in media.items() if name in names}
    if "prompt" in names:
        inputs["prompt"] = _text(_plain(parts))
    return inputs | _further(asked, names)


def check_addresses(messages: Sequence[Mapping[str, Any]], urls: bool) -> None:
    """No part of any message may name what a model would fetch, by whichever key; in what is said it may."""
    for at, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            name = f"messages[{at}].content[{place}]"
            for kind in MEDIA.keys() & part.keys():
                _check_url(f"{name}.{kind}.url", _url(part[kind]), urls)
            for text in _strings([value for key, value in part.items() if key != "text" or not isinstance(value, str)]):
                if ADDRESS.match(text) and not (urls and text.startswith(WEB)):
                    raise _refused(name)


def _strings(value: Any) -> Iterator[str]:
    """All that are in a JSON value, however deep."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            left.extend(value.values() if isinstance(value, dict) else value)


def _media(
    parts: Sequence[dict[str, Any]], urls: bool
) -> tuple[Mapping[str, list[bytes]], list[dict[str, Any]]]:  # fmt: skip
    """What the parts carry, and the parts with a number in its place."""
    found: dict[str, list[bytes]] = {"images": [], "videos": []}
    shown = []
    for place, part in enumerate(parts):
        kind = part.get("type")
        if kind not in MEDIA:
            shown.append(part)
            continue
        name = f"messages.content[{place}].{kind}.url"
        into = found[MEDIA[kind]]
        shown.append({"type": kind.removesuffix("_url"), kind.removesuffix("_url"): len(into)})
        into.append(_fetched(name, _url(part.get(kind)), urls))
    return found, shown


def _url(given: Any) -> Any:
    return given.get("url") if isinstance(given, dict) else given


def _check_url(name: str, url: Any, urls: bool) -> None:
    if not isinstance(url, str):
        raise BadField(name, f"{name} must be a data: URL")
    if not url.startswith("data:") and not (urls and url.startswith(WEB)):
        raise _refused(name)


def _refused(name: str) -> BadField:
    return BadField(
        name, f"{name} must be a data: URL; http and https are passed on to the model only with --media-urls"
    )


def _fetched(name: str, url: Any, urls: bool) -> bytes:
    _check_url(name, url, urls)
    if not url.startswith("data:"):
        return bytes(url.encode())
    head, _, data = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise BadField(name, f"{name} is no data: URL in base64") from None


def _further(asked: TextAsked, names: frozenset[str]) -> Inputs:
    inputs: Inputs = {}
    if "sampling_parameters" in names:
        inputs["sampling_parameters"] = _text(msgspec.json.encode(asked.sampling))
    for name, value in (("stream", asked.stream), ("exclude_input_in_output", True)):
        if name in names:
            inputs[name] = Tensor("BOOL", np.array([value]))
    return inputs


def _plain(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in content if part.get("type") == "text" and "text" in part)


def _text(value: str | bytes) -> Tensor:
    return Tensor("BYTES", _objects([value if isinstance(value, bytes) else value.encode("utf-8", "replace")]))


def _objects(values: Sequence[bytes]) -> Any:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made
