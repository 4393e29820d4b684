"""Response bodies of the OpenAI protocol: completions, chunks of a stream, embeddings, errors. Pure."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.requests import Outputs
from pilotlight_predictor.core.tensors import Array
from pilotlight_predictor.protocols.json_values import PIECE, document_pieces, dump_json, join_pieces

DONE: Final = b"data: [DONE]\n\n"


class ChoiceDelta(msgspec.Struct):
    """New text and tool calls of one choice; `finish` is empty until its end."""

    index: int
    text: str
    finish: str = ""
    logprobs: list[dict[str, Any]] = []
    tool_calls: list[dict[str, Any]] = []

    def __bool__(self) -> bool:
        return bool(self.text or self.finish or self.logprobs or self.tool_calls)


class Usage:
    """Token counts, as far as the model reports them."""

    def __init__(self) -> None:
        self._prompts: dict[int, int] = {}
        self._completions: dict[tuple[int, int], int] = {}

    def add(self, prompt: int, outputs: Outputs, deltas: Sequence[ChoiceDelta]) -> None:
        if "num_input_tokens" in outputs:
            self._prompts[prompt] = int(outputs["num_input_tokens"].array.ravel()[0])
        if "num_output_tokens" in outputs:
            counts = outputs["num_output_tokens"].array.ravel().tolist()
            self._completions |= {(prompt, delta.index): count for delta, count in zip(deltas, counts, strict=False)}

    def as_json(self) -> dict[str, int] | None:
        """Return the usage object; None if the model reports no counts."""
        if not self._prompts and not self._completions:
            return None
        prompt, completion = sum(self._prompts.values()), sum(self._completions.values())
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def choice_deltas(outputs: Outputs, text: str, final: bool) -> list[ChoiceDelta]:
    """Return one delta per choice of a response. Without `finish_reason`, a choice ends with the final response."""
    texts = _texts(outputs, text, 0, "")
    finish = _texts(outputs, "finish_reason", len(texts), "stop" if final else "")
    index = outputs["index"].array.ravel().tolist() if "index" in outputs else list(range(len(texts)))
    lists = (
        [msgspec.json.decode(row) if row else [] for row in _texts(outputs, name, len(texts), "")]
        for name in ("logprobs", "tool_calls")
    )  # fmt: skip
    return [ChoiceDelta(*row) for row in zip(index, texts, finish, *lists, strict=False)]


def _texts(outputs: Outputs, name: str, count: int, default: str) -> list[str]:
    if name not in outputs:
        return [default] * count
    return [bytes(item).decode("utf-8", "replace") for item in outputs[name].array.ravel()]


class ChatBodies:
    """Bodies of one chat: `whole`, or `opening` and then a chunk per delta."""

    def __init__(self, identity: str, created: int, model: str, include_usage: bool) -> None:
        self._head = {"id": f"chatcmpl-{identity}", "created": created, "model": model}
        self._extra: dict[str, Any] = {"usage": None} if include_usage else {}

    def whole(self, choices: Sequence[ChoiceDelta], usage: dict[str, int] | None) -> list[Buffer]:
        items = [self._choice(delta) for delta in choices]
        return _document({**self._head, "object": "chat.completion", "choices": items, "usage": usage}, choices)

    def _choice(self, delta: ChoiceDelta) -> dict[str, Any]:
        content = None if delta.tool_calls and not delta.text else delta.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if delta.tool_calls:
            message["tool_calls"] = [
                {name: call[name] for name in ("id", "type", "function")} for call in delta.tool_calls
            ]
        return {"index": delta.index, "message": message, **_end(delta, self._logprobs(delta))}

    def opening(self, index: int) -> bytes:
        return self._chunk(index, {"role": "assistant", "content": ""}, ChoiceDelta(index, ""))

    def chunk(self, delta: ChoiceDelta) -> bytes:
        parts = {"content": delta.text, "tool_calls": delta.tool_calls}
        return self._chunk(delta.index, {name: value for name, value in parts.items() if value}, delta)

    def last(self, usage: dict[str, int] | None) -> bytes:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        return (_event(chunk) if self._extra else b"") + DONE

    def _chunk(self, index: int, content: Mapping[str, Any], delta: ChoiceDelta) -> bytes:
        choice = {"index": index, "delta": content, **_end(delta, self._logprobs(delta))}
        return _event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **self._extra}, delta)

    def _logprobs(self, delta: ChoiceDelta) -> dict[str, Any] | None:
        return {"content": delta.logprobs, "refusal": None} if delta.logprobs else None


class CompletionBodies:
    """Bodies of one completion."""

    def __init__(self, identity: str, created: int, model: str, include_usage: bool) -> None:
        self._head = {"id": f"cmpl-{identity}", "object": "text_completion", "created": created, "model": model}
        self._extra: dict[str, Any] = {"usage": None} if include_usage else {}
        self._offsets: dict[int, int] = {}

    def whole(self, choices: Sequence[ChoiceDelta], usage: dict[str, int] | None) -> list[Buffer]:
        items = [self._choice(delta) for delta in choices]
        return _document({**self._head, "choices": items, "usage": usage}, choices)

    def opening(self, index: int) -> bytes:
        return b""

    def chunk(self, delta: ChoiceDelta) -> bytes:
        return _event({**self._head, "choices": [self._choice(delta)], **self._extra}, delta)

    def last(self, usage: dict[str, int] | None) -> bytes:
        return (_event({**self._head, "choices": [], "usage": usage}) if self._extra else b"") + DONE

    def _choice(self, delta: ChoiceDelta) -> dict[str, Any]:
        offset = self._offsets.get(delta.index, 0)
        self._offsets[delta.index] = offset + sum(len(entry["token"]) for entry in delta.logprobs)
        return {"index": delta.index, "text": delta.text, **_end(delta, _columns(delta.logprobs, offset))}


def _end(delta: ChoiceDelta, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"logprobs": logprobs, "finish_reason": delta.finish or None}


def _columns(entries: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any] | None:
    """Return logprobs in the format of completions: parallel lists."""
    if not entries:
        return None
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries],
        "text_offset": offsets,
    }


def embeddings(vectors: Array, model: str, as_base64: bool, tokens: int) -> list[Buffer]:
    """Return the body in pieces."""
    pieces = [b'{"object":"list","data":[']
    for index, row in enumerate(np.ascontiguousarray(vectors, dtype="<f4")):
        vector = base64.b64encode(row).decode() if as_base64 else row
        pieces += (b"," if index else b"", dump_json({"object": "embedding", "index": index, "embedding": vector}))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return join_pieces([*pieces, b"],", dump_json({"model": model, "usage": usage})[1:]])


def _document(document: Mapping[str, Any], choices: Sequence[ChoiceDelta]) -> list[Buffer]:
    if any(len(choice.text) > PIECE for choice in choices):
        return join_pieces(document_pieces(document))
    return [dump_json(document)]


def _event(document: Mapping[str, Any], *choices: ChoiceDelta) -> bytes:
    return b"data: %b\n\n" % b"".join(_document(document, choices))
