"""One request while its text is generated: its choices, and how they are told to who asked.

Made of an `Asked` by text.py, carried through the loop by text_engine.py. `Row` is one choice: it takes a token and
knows when it is finished. A client that reads slowly is told several tokens at once and holds nobody else up.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from pilotlight_predictor.backends.base import Asked
from pilotlight_predictor.backends.text_prompt import Tokens
from pilotlight_predictor.backends.text_sampling import Choice, Draw
from pilotlight_predictor.backends.text_stop import Transcript
from pilotlight_predictor.generation import Sampling
from pilotlight_predictor.inference import Outputs
from pilotlight_predictor.tensors import Tensor

STOP: Final = "stop"
LENGTH: Final = "length"
TEXT: Final = "text_output"


class Row:
    """One choice. `length` tokens of it are in the model's cache, and `token` comes next."""

    def __init__(self, task: "Task", index: int, tokens: Tokens) -> None:
        self.task, self.index = task, index
        self.draw = Draw(task.sampling, index)
        self.token = -1
        self.made = 0
        self.finish = ""
        self.cache: Any = None  # its own, where the model's rows cannot share one
        self.unsaid = ""
        self.logprobs: list[dict[str, Any]] = []
        self._tokens = tokens
        self._transcript = Transcript(tokens.decode, task.sampling.stop)

    @property
    def finished(self) -> bool:
        return bool(self.finish)

    @property
    def length(self) -> int:
        return len(self.task.prompt) + self.made - 1

    def take(self, choice: Choice) -> None:
        self.token = choice.token
        self.made += 1
        if choice.token in self.task.ends:
            self.finish = STOP
            self.unsaid += self._transcript.end()
            return
        self.unsaid += self._transcript.push(choice.token)
        if self.task.sampling.logprobs >= 0:
            self.logprobs.append(self._told(choice))
        if self._transcript.stopped:
            self.finish = STOP
        elif self.made >= self.task.max_tokens:
            self.finish = LENGTH
            self.unsaid += self._transcript.end()

    def _told(self, choice: Choice) -> dict[str, Any]:
        top = [self._named(token, logprob) for token, logprob in choice.top.items()]
        return {**self._named(choice.token, choice.logprob), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._tokens.decode([token])
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}


class Task:
    """`slots` are those that the engine still holds for it."""

    def __init__(
        self, asked: Asked, prompt: Sequence[int], sampling: Sampling, max_tokens: int, ends: frozenset[int],
        tokens: Tokens, *, stream: bool, before: str, wanted: frozenset[str],
    ) -> None:  # fmt: skip
        self._asked = asked
        self.prompt = list(prompt)
        self.sampling = sampling
        self.max_tokens = max_tokens
        self.ends = frozenset[int]() if sampling.ignore_eos else ends
        self.rows = [Row(self, index, tokens) for index in range(sampling.n)]
        self.slots = sampling.n
        self._stream = stream
        self._before = before  # stands in front of the text: the prompt, where it is to be repeated
        self._wanted = wanted
        self._told: set[Row] = set()  # rows whose end is told

    @property
    def cancelled(self) -> bool:
        return self._asked.cancelled

    def tell(self) -> bool:
        """Sends what is new; False when the client still has too much to read: then `told_rest` is for later."""
        if not self._stream:
            if all(row.finished for row in self.rows):
                self._asked.send(self._outputs(self.rows))
                self._asked.complete()
            return True
        for row in self.rows:
            if row not in self._told and (row.unsaid or row.finished or row.logprobs):
                if self._asked.full:
                    return False
                self._send(row)
        if len(self._told) == len(self.rows):
            self._asked.complete()
        return True

    def told_rest(self) -> bool:
        """As `tell`; who has gone meanwhile needs to be told nothing but the end."""
        if self.cancelled:
            self.end()
            return True
        return self.tell()

    def fail(self, error: Exception) -> None:
        self._asked.send(error)

    def end(self) -> None:
        self._asked.complete()

    def _send(self, row: Row) -> None:
        self._asked.send(self._outputs([row]))
        row.unsaid, row.logprobs = "", []
        if row.finished:
            self._told.add(row)

    def _outputs(self, rows: Sequence[Row]) -> Outputs:
        all_of: Mapping[str, Tensor] = {
            TEXT: _bytes([self._before + row.unsaid for row in rows]),
            "finish_reason": _bytes([row.finish for row in rows]),
            "index": Tensor("INT32", np.array([row.index for row in rows], "<i4")),
            "num_input_tokens": Tensor("UINT32", np.array([len(self.prompt)], "<u4")),
            "num_output_tokens": Tensor("UINT32", np.array([row.made for row in rows], "<u4")),
            "logprobs": _bytes([msgspec.json.encode(row.logprobs) for row in rows]),
        }
        return {name: tensor for name, tensor in all_of.items() if name == TEXT or name in self._wanted}


def _bytes(texts: Sequence[str | bytes]) -> Tensor:
    encoded = [text if isinstance(text, bytes) else text.encode("utf-8", "replace") for text in texts]
    return Tensor("BYTES", np.array(encoded, dtype=object))
