"""What models say → the bodies of the OpenAI dialect: whole, in chunks of a stream, as vectors, and as errors. Pure."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from pilotlight_predictor.inference import Outputs
from pilotlight_predictor.tensors import Array

DONE: Final = b"data: [DONE]\n\n"


class Piece(msgspec.Struct):
    """What was said of one choice; `finish` is empty until its end."""

    index: int
    text: str
    finish: str = ""
    logprobs: list[dict[str, Any]] = []


class Usage:
    """Tokens, as far as the model tells them."""

    def __init__(self) -> None:
        self._prompts: dict[int, int] = {}
        self._made: dict[tuple[int, int], int] = {}

    def note(self, prompt: int, outputs: Outputs, pieces: Sequence[Piece]) -> None:
        if "num_input_tokens" in outputs:
            self._prompts[prompt] = int(outputs["num_input_tokens"].array.ravel()[0])
        if "num_output_tokens" in outputs:
            counts = outputs["num_output_tokens"].array.ravel().tolist()
            self._made |= {(prompt, piece.index): count for piece, count in zip(pieces, counts, strict=False)}

    def told(self) -> dict[str, int] | None:
        """None when the model counts no tokens."""
        if not self._prompts and not self._made:
            return None
        given, made = sum(self._prompts.values()), sum(self._made.values())
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def pieces(outputs: Outputs, text: str, final: bool) -> list[Piece]:
    """One per choice that an answer of the model tells of. A model that names no reason ends with its last answer."""
    said = [_decoded(item) for item in outputs[text].array.ravel()] if text in outputs else []
    finish = _texts(outputs, "finish_reason", len(said), "stop" if final else "")
    index = outputs["index"].array.ravel().tolist() if "index" in outputs else list(range(len(said)))
    told = [msgspec.json.decode(row) if row else [] for row in _texts(outputs, "logprobs", len(said), "")]
    return [Piece(*row) for row in zip(index, said, finish, told, strict=False)]


def _texts(outputs: Outputs, name: str, count: int, default: str) -> list[str]:
    return [_decoded(item) for item in outputs[name].array.ravel()] if name in outputs else [default] * count


def _decoded(item: bytes) -> str:
    return bytes(item).decode("utf-8", "replace")


class Chat:
    """The bodies of one chat: `whole`, or `opening` and then a chunk per piece."""

    def __init__(self, made: str, created: int, model: str, include_usage: bool) -> None:
        self._head = {"id": f"chatcmpl-{made}", "created": created, "model": model}
        self._further: dict[str, Any] = {"usage": None} if include_usage else {}

    def whole(self, choices: Sequence[Piece], usage: dict[str, int] | None) -> bytes:
        told = [self._choice(piece) for piece in choices]
        return orjson.dumps({**self._head, "object": "chat.completion", "choices": told, "usage": usage})

    def _choice(self, piece: Piece) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": piece.index, "message": message, **_end(piece, self._logprobs(piece))}

    def opening(self, index: int) -> bytes:
        return self._chunk(index, {"role": "assistant", "content": ""}, Piece(index, ""))

    def chunk(self, piece: Piece) -> bytes:
        return self._chunk(piece.index, {"content": piece.text} if piece.text else {}, piece)

    def last(self, usage: dict[str, int] | None) -> bytes:
        return _event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage})

    def _chunk(self, index: int, delta: Mapping[str, str], piece: Piece) -> bytes:
        choice = {"index": index, "delta": delta, **_end(piece, self._logprobs(piece))}
        return _event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **self._further})

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        return {"content": piece.logprobs, "refusal": None} if piece.logprobs else None


class Completion:
    """The bodies of one completion."""

    def __init__(self, made: str, created: int, model: str, include_usage: bool) -> None:
        self._head = {"id": f"cmpl-{made}", "object": "text_completion", "created": created, "model": model}
        self._further: dict[str, Any] = {"usage": None} if include_usage else {}
        self._said: dict[int, int] = {}

    def whole(self, choices: Sequence[Piece], usage: dict[str, int] | None) -> bytes:
        return orjson.dumps({**self._head, "choices": [self._choice(piece) for piece in choices], "usage": usage})

    def opening(self, index: int) -> bytes:
        return b""

    def chunk(self, piece: Piece) -> bytes:
        return _event({**self._head, "choices": [self._choice(piece)], **self._further})

    def last(self, usage: dict[str, int] | None) -> bytes:
        return _event({**self._head, "choices": [], "usage": usage})

    def _choice(self, piece: Piece) -> dict[str, Any]:
        said = self._said.get(piece.index, 0)
        self._said[piece.index] = said + sum(len(entry["token"]) for entry in piece.logprobs)
        return {"index": piece.index, "text": piece.text, **_end(piece, _columns(piece.logprobs, said))}


def _end(piece: Piece, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"logprobs": logprobs, "finish_reason": piece.finish or None}


def _columns(entries: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any] | None:
    """The older shape: a list per kind of fact."""
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


def embeddings(vectors: Array, model: str, as_base64: bool, tokens: int) -> bytes:
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    told = [
        {"object": "embedding", "index": index, "embedding": base64.b64encode(row).decode() if as_base64 else row}
        for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "data": told, "model": model, "usage": usage}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def error_event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
