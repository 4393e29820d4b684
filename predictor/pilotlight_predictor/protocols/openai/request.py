"""Request bodies of the OpenAI protocol: messages or prompts, and sampling parameters. Pure.

A field that would change the response and is not supported is rejected by name; one without effect is ignored; an
unknown one is an error, as it may be misspelt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.generation_params import (
    CHAT_FIELDS,
    BadField,
    as_json,
    check_tool_messages,
    read_chat_options,
    read_sampling,
)
from pilotlight_predictor.errors import BadRequest
from pilotlight_predictor.protocols.json_values import HUGE, check_weight

T = TypeVar("T")
SAMPLING: Final = (
    "temperature", "top_p", "top_k", "n", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias",
    "max_tokens", "ignore_eos",
)  # fmt: skip
# Without effect here: user, storage and billing.
IGNORED: Final = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
# Not supported; the values that have no effect are accepted.
UNSUPPORTED: Final[Mapping[str, tuple[Any, ...]]] = {
    "functions": ([],), "function_call": ("none", "auto"), "audio": (), "modalities": (["text"],), "prediction": (),
    "web_search_options": (), "reasoning_effort": (), "verbosity": (),
}  # fmt: skip
MICROSERVICE_FIELDS: Final = ("conv_mode", "mode")  # of TAO's requests: passed on to the model, which knows the words
UNSUPPORTED_PROMPTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "echo": (False,), "best_of": (1,), "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,), "response_format": ({"type": "text"},),
}  # fmt: skip
CONTENT_OPTIONAL: Final = {"tool_calls", "function_call", "refusal"}  # what an assistant's message may have instead
MAX_PROMPTS: Final = 256
MAX_TEXTS: Final = 2048
MAX_PARTS: Final = 10_000  # messages, and parts of them: each is looked at for addresses
MAX_TOKENS: Final = 1 << 20  # of all prompts
Prompt = str | tuple[int, ...]


class TextRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Chat (`messages`) or completion (`prompts`); `sampling` is validated and passed on to the model.

    `options` are tools and response format of a chat, as sent: inputs of the model.
    """

    model: str
    sampling: Mapping[str, Any]
    messages: Sequence[dict[str, Any]] | None = None
    prompts: tuple[Prompt, ...] = ()
    stream: bool = False
    include_usage: bool = False
    options: Mapping[str, Any] = {}
    adapter: str = ""
    echoed: Mapping[str, Any] = {}  # fields that the Responses API repeats

    @property
    def n(self) -> int:
        return self.sampling.get("n") or 1


class EmbeddingRequest(msgspec.Struct, kw_only=True, frozen=True):
    model: str
    texts: tuple[str, ...]
    base64: bool = False
    dimensions: int = 0


def read_object(body: Buffer) -> dict[str, Any]:
    if not len(body):
        raise BadRequest("the body is empty, must be a JSON object")
    if len(body) > HUGE:
        check_weight(body)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body must be a JSON object: {str(error)[:200]}") from None


def read_body(read: Callable[[dict[str, Any]], T], body: Buffer) -> T:
    """Return what `read` makes of the document; one function, for the helper process."""
    return read(read_object(body))


def read_chat(document: dict[str, Any]) -> TextRequest:
    fields = dict(document)
    messages = _messages(fields.pop("messages", None))
    newer = fields.pop("max_completion_tokens", None)
    if newer is not None:
        if fields.get("max_tokens") not in (None, newer):
            raise BadField("max_tokens", "max_tokens and max_completion_tokens differ: set one of them")
        fields["max_tokens"] = newer
    requested, top = _boolean(fields, "logprobs"), fields.pop("top_logprobs", None)
    if top and not requested:
        raise BadField("top_logprobs", "top_logprobs needs logprobs: true")
    options = {name: value for name in CHAT_FIELDS if (value := fields.pop(name, None)) is not None}
    chosen = read_chat_options(options)
    kept = {"response_format"} if chosen.schema is not None else set()
    kept |= {*CHAT_FIELDS} - {"response_format"} if chosen.tools else set()
    request = _text(fields, UNSUPPORTED, {"logprobs": (top or 0) if requested else None})
    options = {name: value for name, value in options.items() if name in kept and value not in ("auto", True)}
    return msgspec.structs.replace(request, messages=messages, options=options)


def read_microservice_chat(document: dict[str, Any]) -> TextRequest:
    """Return the chat request of a microservice, with TAO's fields in `sampling`; `auto` leaves them to the model."""
    fields = dict(document)
    modes = {name: fields.pop(name) for name in MICROSERVICE_FIELDS if name in fields}
    for name, value in modes.items():
        if not isinstance(value, str | None):
            raise BadField(name, f"{name} = {as_json(value)}, must be text")
    request = read_chat(fields)
    chosen = {name: value for name, value in modes.items() if value not in (None, "auto")}
    return msgspec.structs.replace(request, sampling={**request.sampling, **chosen})


def read_completion(document: dict[str, Any]) -> TextRequest:
    fields = dict(document)
    prompts, logprobs = _prompts(fields.pop("prompt", None)), fields.pop("logprobs", None)
    if fields.get("best_of") == fields.get("n"):
        fields.pop("best_of", None)
    request = _text(fields, {**UNSUPPORTED, **UNSUPPORTED_PROMPTS}, {"logprobs": logprobs})
    return msgspec.structs.replace(request, prompts=prompts)


def read_embedding(document: dict[str, Any]) -> EmbeddingRequest:
    fields = dict(document)
    texts = fields.pop("input", None)
    model = _model(fields)
    form = fields.pop("encoding_format", None)
    if form not in (None, "float", "base64"):
        raise BadField("encoding_format", f"encoding_format = {as_json(form)}, must be float or base64")
    dimensions = fields.pop("dimensions", None)
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise BadField("dimensions", f"dimensions = {as_json(dimensions)}, must be a whole number of 1 or greater")
    reject_unsupported(fields, {})
    texts = [texts] if isinstance(texts, str) else texts
    if texts is None or texts == []:
        raise BadField("input", "input is missing" if texts is None else "input is empty")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadField("input", "input must be a string or a list of strings, not tokens")
    if len(texts) > MAX_TEXTS:
        raise BadField("input", f"input has {len(texts)} strings, must have at most {MAX_TEXTS}")
    return EmbeddingRequest(model=model, texts=tuple(texts), base64=form == "base64", dimensions=dimensions or 0)


def _text(fields: dict[str, Any], unsupported: Mapping[str, tuple[Any, ...]], more: Mapping[str, Any]) -> TextRequest:
    model, stream = _model(fields), _boolean(fields, "stream")
    options = fields.pop("stream_options", None)
    if options is not None and (not isinstance(options, dict) or not stream):
        raise BadField("stream_options", "stream_options must be an object and needs stream: true")
    if unknown := (options or {}).keys() - {"include_usage", "include_obfuscation"}:
        name = f"stream_options.{min(unknown)[:100]}"
        raise BadField(name, f"{name} is not a field of this request")
    usage = _boolean(dict(options or {}), "include_usage", "stream_options.")
    sampling = {name: fields.pop(name) for name in SAMPLING if fields.get(name) is not None}
    sampling |= {name: value for name, value in more.items() if value is not None}
    reject_unsupported(fields, unsupported)
    read_sampling(sampling)
    return TextRequest(model=model, sampling=sampling, stream=stream, include_usage=usage)


def reject_unsupported(fields: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    for name, value in fields.items():
        if value is None or name in IGNORED or name in SAMPLING:
            continue
        if name not in unsupported:
            raise BadField(name, f"{name[:100]} is not a field of this request")
        if value not in unsupported[name]:
            only = " or ".join(as_json(neutral) for neutral in unsupported[name])
            raise BadField(name, f"{name} is not supported, " + (f"must be {only}" if only else "leave it out"))


def _model(fields: dict[str, Any]) -> str:
    model = fields.pop("model", None)
    if model is not None and not isinstance(model, str):
        raise BadField("model", f"model = {as_json(model)}, must be the name of a model")
    return model or ""


def _messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise BadField("messages", "messages must be a list of at least one message")
    count = len(messages)
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadField(f"messages[{index}]", f"messages[{index}] must be an object with role and content")
        check_tool_messages(index, message)
        name, content = f"messages[{index}].content", message.get("content")
        if "content" not in message and not (message["role"] == "assistant" and message.keys() & CONTENT_OPTIONAL):
            raise BadField(name, f"{name} is missing")
        parts = content if isinstance(content, list) else ()
        count += len(parts) + len(message.get("tool_calls") or ())
        if count > MAX_PARTS:
            raise BadField("messages", f"messages has more than {MAX_PARTS} messages and parts; send fewer")
        typed = all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in parts)
        if not isinstance(content, str | list | None) or not typed or (content is None and message["role"] == "user"):
            raise BadField(name, f"{name} must be text or a list of parts with a type")
    return messages


def _prompts(value: Any) -> tuple[Prompt, ...]:
    tokens = (
        sum(len(item) if isinstance(item, list) else not isinstance(item, str) for item in value)
        if isinstance(value, list)
        else 0
    )
    if tokens > MAX_TOKENS:
        raise BadField("prompt", f"prompt has {tokens} tokens, must have at most {MAX_TOKENS}")
    prompts = value if isinstance(value, list) and value and not _is_tokens(value) else [value]
    if not all(isinstance(prompt, str) or _is_tokens(prompt) for prompt in prompts):
        raise BadField("prompt", "prompt must be a string, a list of tokens, or a list of such prompts")
    if len(prompts) > MAX_PROMPTS:
        raise BadField("prompt", f"prompt has {len(prompts)} prompts, must have at most {MAX_PROMPTS}")
    return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _boolean(fields: dict[str, Any], name: str, prefix: str = "") -> bool:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise BadField(prefix + name, f"{prefix}{name} = {as_json(value)}, must be true or false")
    return bool(value)
