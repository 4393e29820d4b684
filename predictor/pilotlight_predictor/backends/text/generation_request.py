"""One request while its text is generated: its choices, detokenisation with stop sequences, and sending the text.

Created from a DecoupledRequest by backend.py and run by engine.py. A client that reads slowly gets several tokens per
response and does not delay others.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight_predictor.backends.base import DecoupledRequest
from pilotlight_predictor.backends.text.grammar import Grammar
from pilotlight_predictor.backends.text.lora_layers import NO_ADAPTER
from pilotlight_predictor.backends.text.prompt import PromptTokenizer
from pilotlight_predictor.backends.text.sampler import NO_TOKEN, SampledToken, Sampler
from pilotlight_predictor.backends.text.tool_calls import ToolCallParser
from pilotlight_predictor.core.generation_params import BadField, SamplingParameters
from pilotlight_predictor.core.requests import Outputs
from pilotlight_predictor.core.tensors import Tensor

Decode = Callable[[Sequence[int]], str]
UNFINISHED: Final = "\ufffd"  # a tokenizer's output for an incomplete character
CONTEXT: Final = 5  # previous tokens decoded again, on which the spaces before new ones depend
STOP: Final = "stop"
LENGTH: Final = "length"
CALLS: Final = "tool_calls"
TEXT: Final = "text_output"


class Transcript:
    """Text of one choice. `stopped` after a stop string.

    Text is held back while its last character is incomplete, and while it may be the beginning of a stop string. Text
    once returned is never revoked.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._tokens: list[int] = []
        self._begin = 0  # first token of the context that is decoded again
        self._read = 0  # tokens whose text was returned or held
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token; return the text that is final, which may be empty."""
        self._tokens.append(token)
        return self._release(self._new_text(last=False), last=False)

    def end(self) -> str:
        """Return the text held back, at the end of the tokens."""
        return "" if self.stopped else self._release(self._new_text(last=True), last=True)

    def _new_text(self, last: bool) -> str:
        # Decoded with context, and the context's own text cut off: alone, a token loses the space before it.
        before = self._decode(self._tokens[self._begin : self._read])
        text = self._decode(self._tokens[self._begin :])
        if not last and text.endswith(UNFINISHED):
            return ""
        self._read = len(self._tokens)
        self._begin = max(self._begin, self._read - CONTEXT)
        return text[len(before) :]

    def _release(self, text: str, last: bool) -> str:
        if not self._stops:
            return text
        text = self._held + text
        stop_at = min((index for stop in self._stops if (index := text.find(stop)) >= 0), default=-1)
        if stop_at >= 0:
            self.stopped, self._held = True, ""
            return text[:stop_at]
        held = 0
        if not last:  # hold the longest suffix that is a prefix of a stop string
            longest = min(len(text), max(map(len, self._stops)) - 1)
            sizes = range(longest, 0, -1)
            held = next((size for size in sizes if any(s.startswith(text[-size:]) for s in self._stops)), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


class ChoiceRow:
    """One choice: `length` tokens of it are in the KV cache, and `token` is the next input."""

    def __init__(
        self, task: "Task", index: int, tokens: PromptTokenizer, grammar: Grammar | None, parser: ToolCallParser | None
    ) -> None:
        self.task, self.index = task, index
        self.sampler = Sampler(task.sampling, index, grammar)
        self.token = -1
        self.generated = 0
        self.finish = ""
        self.cache: Any = None  # its own, if the model's rows cannot share one
        self.pending_text = ""
        self.logprobs: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self._tokens, self._grammar, self._parser = tokens, grammar, parser
        special = parser is not None and parser.marked  # markers of calls may be special tokens
        self._transcript = Transcript(partial(tokens.decode, special=special), task.sampling.stop)

    @property
    def finished(self) -> bool:
        return bool(self.finish)

    @property
    def length(self) -> int:
        return len(self.task.prompt) + self.generated - 1

    def append(self, choice: SampledToken) -> None:
        if choice.token == NO_TOKEN:
            self.task.fail(BadField("response_format", "the JSON schema is too complex to generate text by"))
            self.finish = STOP
            return
        self.token = choice.token
        self.generated += 1
        if choice.token in self.task.ends:
            self._end(STOP)
            return
        self._add(self._transcript.push(choice.token))
        if self.task.sampling.logprobs >= 0:
            top = [self._named(token, logprob) for token, logprob in choice.top.items()]
            self.logprobs.append({**self._named(choice.token, choice.logprob), "top_logprobs": top})
        if self._transcript.stopped or (self._grammar is not None and self._grammar.finished):
            self._end(STOP)
        elif self.generated >= self.task.max_tokens:
            self._end(LENGTH)

    def _add(self, text: str, *, last: bool = False) -> None:
        if self._parser is None:
            self.pending_text += text
            return
        content, calls = self._parser.push(text, last=last)
        self.pending_text += content
        self.calls += calls

    def _end(self, finish: str) -> None:
        self._add(self._transcript.end(), last=True)
        self.finish = CALLS if finish == STOP and self._parser is not None and self._parser.count else finish

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._tokens.decode([token])
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}


class Task:
    """One request in the engine; `slots` are those it still occupies. `on_released` is called after the last."""

    def __init__(
        self, request: DecoupledRequest, prompt: Sequence[int], sampling: SamplingParameters, max_tokens: int,
        ends: frozenset[int], tokens: PromptTokenizer, *, stream: bool, before: str, outputs: frozenset[str],
        grammars: Sequence[Grammar] = (), new_parser: Callable[[], ToolCallParser] | None = None,
        adapter: int = NO_ADAPTER, on_released: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._request = request
        self.prompt = list(prompt)
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.ends = frozenset[int]() if sampling.ignore_eos else ends
        self.rows = [
            ChoiceRow(self, index, tokens, grammars[index] if grammars else None, new_parser and new_parser())
            for index in range(sampling.n)
        ]  # fmt: skip
        self._failed = False
        self.slots = sampling.n
        self.adapter, self.on_released = adapter, on_released
        self._stream = stream
        self._prefix = before  # of the text: the prompt, if it is to be repeated
        self._outputs_requested = outputs
        self._finished: set[ChoiceRow] = set()  # rows whose last text was sent

    @property
    def cancelled(self) -> bool:
        return self._failed or self._request.cancelled

    def flush(self) -> bool:
        """Send new text; return False if the client's buffer is full: then call `flush_late` later."""
        if self._failed:
            return True
        if not self._stream:
            if all(row.finished for row in self.rows):
                self._request.send(self._outputs(self.rows))
                self._request.complete()
            return True
        for row in self.rows:
            if row not in self._finished and (row.pending_text or row.finished or row.logprobs or row.calls):
                if self._request.full:
                    return False
                self._request.send(self._outputs([row]))
                row.pending_text, row.logprobs, row.calls = "", [], []
                if row.finished:
                    self._finished.add(row)
        if len(self._finished) == len(self.rows):
            self._request.complete()
        return True

    def flush_late(self) -> bool:
        """As `flush`; only end the response if the client has disconnected."""
        if self.cancelled:
            self.end()
            return True
        return self.flush()

    def fail(self, error: Exception) -> None:
        """Send the error; the engine removes the request's choices."""
        self._failed = True
        self._request.send(error)

    def end(self) -> None:
        if not self._failed:
            self._request.complete()

    def _outputs(self, rows: Sequence[ChoiceRow]) -> Outputs:
        outputs: Mapping[str, Tensor] = {
            TEXT: _bytes([self._prefix + row.pending_text for row in rows]),
            "finish_reason": _bytes([row.finish for row in rows]),
            "index": Tensor("INT32", np.array([row.index for row in rows], "<i4")),
            "num_input_tokens": Tensor("UINT32", np.array([len(self.prompt)], "<u4")),
            "num_output_tokens": Tensor("UINT32", np.array([row.generated for row in rows], "<u4")),
            "logprobs": _bytes([msgspec.json.encode(row.logprobs) for row in rows]),
            CALLS: _bytes([msgspec.json.encode(row.calls) for row in rows]),
        }
        return {name: tensor for name, tensor in outputs.items() if name == TEXT or name in self._outputs_requested}


def _bytes(texts: Sequence[str | bytes]) -> Tensor:
    encoded = [text if isinstance(text, bytes) else text.encode("utf-8", "replace") for text in texts]
    return Tensor("BYTES", np.array(encoded, dtype=object))
