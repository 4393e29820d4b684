"""Tokenisation of prompts and chat messages by the model's own tokenizer and chat template, and decoding.

The tokenizer is read from the model's directory only. Errors of a template are returned to the client.
"""

from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any

import msgspec

from pilotlight_predictor.backends.text.template_limits import TemplateStopped, check_template, render_within_limits
from pilotlight_predictor.backends.text.tool_calls import FORMATS, ToolCallFormat, find_format
from pilotlight_predictor.backends.transformers_library import CHARACTERS
from pilotlight_predictor.core.generation_params import BadField, TaskNotSupported, call_arguments, check_tool_messages
from pilotlight_predictor.errors import BadRequest


class PromptTokenizer:
    """Thread-safe tokenizer of one model. `context`: tokens that it takes."""

    def __init__(self, tokenizer: Any, model: str, context: int) -> None:
        import copy

        self._tokenizer = tokenizer
        self._decoder = copy.deepcopy(tokenizer)  # encoding temporarily changes a tokenizer's settings
        self._model, self._context = model, context
        self._lock = Lock()
        self._template_checked = False

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        text: str = self._decoder.decode(tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return tokens, never empty: an empty prompt becomes the model's BOS token."""
        if len(text) > CHARACTERS * self._context:
            wanted = f"at most {CHARACTERS} for each of the {self._context} tokens of model '{self._model}'"
            raise BadField("prompt", f"the prompt has {len(text)} characters, must have {wanted}")
        with self._lock:
            tokens = self._tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        if tokens:
            return [int(token) for token in tokens]
        for start in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id):
            if start is not None:
                return [int(start)]
        raise BadRequest(f"the prompt of model '{self._model}' is empty, must hold some text")

    def check(self, tokens: Sequence[int]) -> list[int]:
        """Validate a prompt that was sent as tokens."""
        size = len(self._tokenizer)
        if not tokens or not all(0 <= token < size for token in tokens):
            raise BadRequest(f"prompt has tokens outside the vocabulary, each must be from 0 to {size - 1}")
        return list(tokens)

    @property
    def chats(self) -> bool:
        return bool(getattr(self._tokenizer, "chat_template", None))

    def special_token(self, text: str) -> int | None:
        """Return the special token whose text this is; None if there is none."""
        special = self._tokenizer.all_special_tokens
        added = self._tokenizer.added_tokens_decoder.items()
        tokens = (token for token, entry in added if entry.content == text and (entry.special or text in special))
        return next(tokens, None)

    def grammar_tokenizer(self, ends: Sequence[int]) -> Any:
        """Return llguidance's form of the tokenizer; takes about a second."""
        from llguidance.hf import from_tokenizer

        try:
            with self._lock:
                return from_tokenizer(self._tokenizer, eos_token=list(ends) or None)
        except ValueError as error:
            raise BadRequest(f"model '{self._model}' has no tokenizer for constrained decoding: {error}") from None

    def tool_format(self, tools: Sequence[dict[str, Any]]) -> ToolCallFormat:
        """Return the format of calls in the model's chat template. Raises BadField if it takes no tools."""
        template = self._tokenizer.get_chat_template(tools=list(tools)) if self.chats else ""
        if "tools" not in template:
            raise BadField("tools", f"tools are not supported: the chat template of model '{self._model}' takes none")
        if (found := find_format(template)) is None:
            known = ", ".join(form.name for form in FORMATS)
            raise BadField("tools", f"tools: model '{self._model}' has a chat template in none of the formats {known}")
        return found

    def chat(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        if not self.chats:
            raise TaskNotSupported(
                f"model '{self._model}' has no chat template: call /v1/completions with a prompt, or add a "
                "chat_template.jinja beside its tokenizer.json"
            )
        plain = [
            {**message, "content": _plain(message.get("content"), self._model), **_calls(message)}
            for message in messages
        ]
        render = partial(
            self._tokenizer.apply_chat_template, plain, tools=list(tools) or None, tokenize=False,
            add_generation_prompt=True,
        )  # fmt: skip
        try:
            if not self._template_checked:
                templates = self._tokenizer.chat_template
                check_template([templates] if isinstance(templates, str) else templates.values())
                self._template_checked = True
            text = render_within_limits(render)
        except TemplateStopped as error:
            raise BadRequest(f"the chat template of model '{self._model}' cannot be rendered: {error}") from None
        except Exception as error:  # a template can raise anything; its only input is messages
            raise BadRequest(f"messages do not fit the chat template of model '{self._model}': {error}") from None
        return self.encode(text, special=False)


def _plain(content: Any, model: str) -> str:
    """Text of a message, which may have several parts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) != len(content):
        raise BadRequest(f"messages have parts that are not text, and model '{model}' takes text only")
    return "\n".join(texts)


def _calls(message: dict[str, Any]) -> dict[str, Any]:
    """Tool calls of a message with their arguments as objects, which templates write as JSON."""
    calls = message.get("tool_calls")
    if not calls:
        return {}
    functions = [{**call["function"], "arguments": call_arguments(call["function"].get("arguments"))} for call in calls]
    return {"tool_calls": [{**call, "function": f} for call, f in zip(calls, functions, strict=True)]}


def read_messages(data: bytes) -> list[dict[str, Any]]:
    """Parse the input `messages`: a JSON list of objects with role and content."""
    try:
        messages = msgspec.json.decode(data, type=list[dict[str, Any]])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadRequest(f"input 'messages' must be a JSON list of messages with role and content: {error}") from None
    if not messages or not all(isinstance(message.get("role"), str) for message in messages):
        raise BadRequest("input 'messages' must have at least one message, and each a role")
    for index, message in enumerate(messages):
        check_tool_messages(index, message)
        if not isinstance(message.get("content"), str | list | None):
            raise BadRequest("input 'messages' has a content that is neither text nor a list of parts")
    return messages
