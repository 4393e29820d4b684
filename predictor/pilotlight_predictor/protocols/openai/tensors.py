"""OpenAI capabilities of a model, and its input tensors for a request. Pure.

Capabilities follow from the tensors: `messages` for chat, `text_input` for completions, one text input and one vector
output for embeddings, two texts and one score for ranking. The text backend has the first two; a Python model may have
any of them (docs/reference/openai.md).
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from pilotlight_predictor.core.generation_params import BadField
from pilotlight_predictor.core.requests import Inputs, RequestedOutput
from pilotlight_predictor.core.tensors import Tensor, TensorSpec, objects
from pilotlight_predictor.protocols.json_values import PIECE, document_pieces
from pilotlight_predictor.protocols.openai.request import Prompt, TextRequest

TEXT_OUTPUTS: Final = (
    "text_output", "finish_reason", "index", "num_input_tokens", "num_output_tokens", "logprobs", "tool_calls",
)  # fmt: skip
MEDIA: Final = {"image_url": "images", "video_url": "videos"}
ADDRESS: Final = re.compile(r"\s*[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
MAX_SLICE: Final = 1 << 22  # characters of base64, decoded in 10 ms
WEB: Final = ("http://", "https://")
FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})
PAIRS: Final = (("text", "text_pair"), ("query", "document"))  # inputs of a model that scores two texts


class TextCapabilities(NamedTuple):
    """Capabilities of a model. `text`: output with the generated text; `embeds`: input and output for embeddings;
    `ranks`: query, document and score."""

    chats: bool
    completes: bool
    text: str
    embeds: tuple[TensorSpec, TensorSpec] | None
    ranks: tuple[TensorSpec, TensorSpec, TensorSpec] | None

    @property
    def any(self) -> bool:
        return self.chats or self.completes or self.scores

    @property
    def scores(self) -> bool:
        """Whether pairs of texts have a score: the model's own, or the cosine of two vectors."""
        return self.embeds is not None or self.ranks is not None


def text_capabilities(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> TextCapabilities:
    names = {spec.name for spec in inputs if spec.datatype == "BYTES"}
    texts = [spec.name for spec in outputs if spec.datatype == "BYTES"]
    text = "text_output" if "text_output" in texts else texts[0] if len(texts) == 1 else ""
    chats, completes = bool(text) and "messages" in names, bool(text) and "text_input" in names
    needed = [spec for spec in inputs if not spec.optional]
    vectors = [spec for spec in outputs if spec.datatype in FLOATS]
    one_text = len(needed) == 1 and needed[0].datatype == "BYTES"
    one_vector = len(vectors) == 1 and len(vectors[0].shape) == 2
    by_name = {spec.name: spec for spec in inputs if spec.datatype == "BYTES"}
    pair = next(((by_name[a], by_name[b]) for a, b in PAIRS if by_name.keys() >= {a, b}), None)
    one_score = len(vectors) == 1 and not texts and vectors[0].shape[1:] in {(), (1,)}
    ranks = (*pair, vectors[0]) if pair and one_score and all(spec in pair for spec in needed) else None
    generates = chats or completes
    embeds = (needed[0], vectors[0]) if one_text and one_vector and not generates and not ranks else None
    return TextCapabilities(chats, completes, text, embeds, ranks)


def needed_outputs(outputs: Sequence[TensorSpec], text: str) -> tuple[RequestedOutput, ...]:
    return tuple(RequestedOutput(spec.name) for spec in outputs if spec.name == text or spec.name in TEXT_OUTPUTS)


def prompt_inputs(request: TextRequest, prompt: Prompt, names: frozenset[str]) -> Inputs:
    """Return the inputs of a completion; `names` are the model's inputs."""
    if isinstance(prompt, str):
        first = {"text_input": _text(prompt)}
    elif "tokens" in names:
        if not all(0 <= token < 2**31 for token in prompt):
            raise BadField("prompt", "prompt has tokens outside the vocabulary")
        first = {"tokens": Tensor("INT32", np.array(prompt, "<i4"))}
    else:
        raise BadField("prompt", "prompt is a list of tokens, must be text for this model")
    return first | _options(request, names)


def chat_inputs(request: TextRequest, names: frozenset[str], media_urls: bool) -> Inputs:
    """Return the inputs of a chat. Media and `prompt` come from the first user message; `messages` has all."""
    messages = request.messages or ()
    check_addresses(messages, media_urls)
    inputs: Inputs = {"messages": Tensor("BYTES", objects([_json(messages)]))}
    first_user = next((message for message in messages if message["role"] == "user"), {})
    parts = first_user.get("content") or ""
    if isinstance(parts, list) and {"images", "videos"} & names:
        media, parts = _media(parts, media_urls)
        replaced = [{**message, "content": parts} if message is first_user else message for message in messages]
        inputs["messages"] = Tensor("BYTES", objects([_json(replaced)]))
        inputs |= {name: Tensor("BYTES", objects(items)) for name, items in media.items() if name in names}
    if "prompt" in names:
        if not isinstance(parts, str):
            parts = "\n".join(str(part["text"]) for part in parts if part.get("type") == "text" and "text" in part)
        inputs["prompt"] = _text(parts)
    return inputs | _options(request, names)


def _json(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the JSON; with long texts from pieces, since a call holds the GIL."""
    if any(len(text) > PIECE for text in _strings(list(messages))):
        return b"".join(document_pieces(list(messages)))
    return msgspec.json.encode(messages)


def check_addresses(messages: Sequence[Mapping[str, Any]], urls: bool) -> None:
    """Reject URLs that a model might fetch, under any key of a message part but its text."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            name = f"messages[{number}].content[{index}]"
            for kind in MEDIA.keys() & part.keys():
                _check_url(f"{name}.{kind}.url", _url(part[kind]), urls)
            for text in _strings([value for key, value in part.items() if key != "text" or not isinstance(value, str)]):
                if ADDRESS.match(text) and not (urls and text.startswith(WEB)):
                    raise _url_error(name)


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            left.extend(value.values() if isinstance(value, dict) else value)


def _media(parts: Sequence[dict[str, Any]], urls: bool) -> tuple[Mapping[str, list[bytes]], list[dict[str, Any]]]:
    """Return the media, and the parts with media replaced by their index."""
    media: dict[str, list[bytes]] = {"images": [], "videos": []}
    replaced = []
    for index, part in enumerate(parts):
        kind = part.get("type")
        if kind not in MEDIA:
            replaced.append(part)
            continue
        name = f"messages.content[{index}].{kind}.url"
        target = media[MEDIA[kind]]
        replaced.append({"type": kind.removesuffix("_url"), kind.removesuffix("_url"): len(target)})
        target.append(_media_bytes(name, _url(part.get(kind)), urls))
    return media, replaced


def _url(value: Any) -> Any:
    return value.get("url") if isinstance(value, dict) else value


def _check_url(name: str, url: Any, urls: bool) -> None:
    if not isinstance(url, str):
        raise BadField(name, f"{name} must be a data: URL")
    if not url.startswith("data:") and not (urls and url.startswith(WEB)):
        raise _url_error(name)


def _url_error(name: str) -> BadField:
    return BadField(name, f"{name} must be a data: URL; http and https URLs need --media-urls")


def _media_bytes(name: str, url: Any, urls: bool) -> bytes:
    _check_url(name, url, urls)
    if not url.startswith("data:"):
        return bytes(url.encode())
    head, _, data = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError
        # In slices of whole groups of four characters, since a call holds the GIL; only the last one may be padded.
        slices = (data[start : start + MAX_SLICE] for start in range(0, len(data), MAX_SLICE))
        return b"".join([base64.b64decode(piece, validate=True) for piece in slices])
    except (binascii.Error, ValueError):
        raise BadField(name, f"{name} is not a base64 data: URL") from None


def _options(request: TextRequest, names: frozenset[str]) -> Inputs:
    inputs: Inputs = {}
    for name, value in request.options.items():
        if name not in names:
            raise BadField(name, f"{name} is not supported: the model has no input '{name}'")
        inputs[name] = _text(msgspec.json.encode(value))
    if "sampling_parameters" in names:
        inputs["sampling_parameters"] = _text(msgspec.json.encode(request.sampling))
    for name, value in (("stream", request.stream), ("exclude_input_in_output", True)):
        if name in names:
            inputs[name] = Tensor("BOOL", np.array([value]))
    return inputs


def _text(value: str | bytes) -> Tensor:
    return Tensor("BYTES", objects([value if isinstance(value, bytes) else value.encode("utf-8", "replace")]))
