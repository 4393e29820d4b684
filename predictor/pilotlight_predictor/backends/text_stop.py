"""Incremental detokenisation with stop sequences: tokens → text that can be sent.

One `Transcript` per choice. Text is held back while its last character is incomplete, and while it may be the beginning
of a stop string. Text once returned is never revoked.
"""

from collections.abc import Callable, Sequence
from typing import Final

Decode = Callable[[Sequence[int]], str]
UNFINISHED: Final = "\ufffd"  # a tokenizer's output for an incomplete character
CONTEXT: Final = 5  # previous tokens decoded again, on which the spaces before new ones depend


class Transcript:
    """Text of one choice. `stopped` after a stop string was found."""

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
        held = 0 if last else _partial_stop(text, self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _partial_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a prefix of a stop string."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((size for size in range(longest, 0, -1) if any(s.startswith(text[-size:]) for s in stops)), 0)
