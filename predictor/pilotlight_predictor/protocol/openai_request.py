"""Bodies of the OpenAI dialect → what is asked for: messages or prompts, and the sampling parameters. Pure.

Before openai_tensors.py, which makes a model's inputs of it. A field that would change the answer and is not served is
refused by name; one that changes nothing is let pass; one that is not known is an error, as it may be misspelt.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.generation import BadField, read_sampling

SAMPLING: Final = (
    "temperature", "top_p", "top_k", "n", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias",
    "max_tokens", "ignore_eos",
)  # fmt: skip
# They change nothing here: who asks, where it is kept, how it is billed.
HARMLESS: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)
# Not served; the values that ask for nothing are taken.
REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "audio": (), "modalities": (["text"],), "prediction": (),
    "web_search_options": (), "reasoning_effort": (), "verbosity": (),
}  # fmt: skip
REFUSED_PROMPTS: Final[Mapping[str, tuple[Any, ...]]] = {"echo": (False,), "best_of": (1,), "suffix": ("",)}
MAX_PROMPTS: Final = 256

Prompt = str | tuple[int, ...]


class TextAsked(msgspec.Struct, kw_only=True, frozen=True):
    """A chat has `messages`, a completion `prompts`. `sampling` is checked, and as it is passed on."""

    model: str
    sampling: Mapping[str, Any]
    messages: Sequence[dict[str, Any]] | None = None
    prompts: tuple[Prompt, ...] = ()
    stream: bool = False
    include_usage: bool = False

    @property
    def n(self) -> int:
        return self.sampling.get("n") or 1


class EmbeddingAsked(msgspec.Struct, kw_only=True, frozen=True):
    model: str
    texts: tuple[str, ...]
    base64: bool = False
    dimensions: int = 0


def read_object(body: Buffer) -> dict[str, Any]:
    if not len(body):
        raise BadRequest("the body is empty, must be a JSON object")
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body must be a JSON object: {str(error)[:200]}") from None


def read_chat(document: dict[str, Any]) -> TextAsked:
    fields = dict(document)
    messages = _messages(fields.pop("messages", None))
    _rename_max_tokens(fields)
    wanted, top = _boolean(fields, "logprobs"), fields.pop("top_logprobs", None)
    if top and not wanted:
        raise BadField("top_logprobs", "top_logprobs is given, so logprobs must be true")
    asked = _text(fields, REFUSED, {"logprobs": (top or 0) if wanted else None})
    return msgspec.structs.replace(asked, messages=messages)


def read_completion(document: dict[str, Any]) -> TextAsked:
    fields = dict(document)
    prompts, logprobs = _prompts(fields.pop("prompt", None)), fields.pop("logprobs", None)
    if fields.get("best_of") == fields.get("n"):
        fields.pop("best_of", None)
    asked = _text(fields, {**REFUSED, **REFUSED_PROMPTS}, {"logprobs": logprobs})
    return msgspec.structs.replace(asked, prompts=prompts)


def read_embedding(document: dict[str, Any]) -> EmbeddingAsked:
    fields = dict(document)
    texts, model = _texts(fields.pop("input", None)), _model(fields)
    form = fields.pop("encoding_format", None)
    if form not in (None, "float", "base64"):
        raise BadField("encoding_format", f"encoding_format = {_shown(form)}, must be float or base64")
    dimensions = fields.pop("dimensions", None)
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise BadField("dimensions", f"dimensions = {_shown(dimensions)}, must be a whole number of 1 or greater")
    _refuse(fields, {})
    return EmbeddingAsked(model=model, texts=texts, base64=form == "base64", dimensions=dimensions or 0)


def _text(fields: dict[str, Any], refused: Mapping[str, tuple[Any, ...]], more: Mapping[str, Any]) -> TextAsked:
    model, stream = _model(fields), _boolean(fields, "stream")
    options = fields.pop("stream_options", None)
    if options is not None and (not isinstance(options, dict) or not stream):
        raise BadField("stream_options", "stream_options must be an object, and stream must be true with it")
    if unknown := (options or {}).keys() - {"include_usage", "include_obfuscation"}:
        name = f"stream_options.{min(unknown)[:100]}"
        raise BadField(name, f"{name} is not a field of this request")
    usage = _boolean(dict(options or {}), "include_usage", "stream_options.")
    sampling = {name: fields.pop(name) for name in SAMPLING if fields.get(name) is not None}
    sampling |= {name: value for name, value in more.items() if value is not None}
    _refuse(fields, refused)
    read_sampling(sampling)
    return TextAsked(model=model, sampling=sampling, stream=stream, include_usage=usage)


def _refuse(fields: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]]) -> None:
    for name, value in fields.items():
        if value is None or name in HARMLESS or name in SAMPLING:
            continue
        if name not in refused:
            raise BadField(name, f"{name[:100]} is not a field of this request")
        if value not in refused[name]:
            only = " or ".join(_shown(neutral) for neutral in refused[name])
            raise BadField(name, f"{name} is not supported here, " + (f"must be {only}" if only else "leave it out"))


def _rename_max_tokens(fields: dict[str, Any]) -> None:
    newer = fields.pop("max_completion_tokens", None)
    if newer is None:
        return
    if fields.get("max_tokens") not in (None, newer):
        raise BadField("max_tokens", "max_tokens and max_completion_tokens differ: give one of them")
    fields["max_tokens"] = newer


def _model(fields: dict[str, Any]) -> str:
    model = fields.pop("model", None)
    if model is not None and not isinstance(model, str):
        raise BadField("model", f"model = {_shown(model)}, must be the name of a model")
    return model or ""


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise BadField("messages", "messages must be a list of at least one message")
    for place, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadField(f"messages[{place}]", f"messages[{place}] must be an object with role and content")
        content = message.get("content")
        if not isinstance(content, str | list | None) or (
            isinstance(content, list) and not all(_is_part(part) for part in content)
        ):
            raise BadField(
                f"messages[{place}].content", f"messages[{place}].content must be text or a list of parts with a type"
            )
    return given


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("type"), str)


def _prompts(given: Any) -> tuple[Prompt, ...]:
    prompts = given if isinstance(given, list) and given and not _is_tokens(given) else [given]
    if not all(isinstance(prompt, str) or _is_tokens(prompt) for prompt in prompts):
        raise BadField("prompt", "prompt must be a string, a list of tokens, or a list of such prompts")
    if len(prompts) > MAX_PROMPTS:
        raise BadField("prompt", f"prompt has {len(prompts)} prompts, must have at most {MAX_PROMPTS}")
    return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _texts(given: Any) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise BadField("input", "input must be a string or a list of strings; tokens are not taken")
    if len(texts) > 2048:
        raise BadField("input", f"input has {len(texts)} strings, must have at most 2048")
    return tuple(texts)


def _boolean(fields: dict[str, Any], name: str, place: str = "") -> bool:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise BadField(place + name, f"{place}{name} = {_shown(value)}, must be true or false")
    return bool(value)


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"
