"""Tokens as they come → text that may be shown, and where it ends. Pure but for the tokenizer it is given.

One `Transcript` per choice. A token may be part of a character, so text waits until its last character is whole; and
text that a stop string may begin with waits until it is known whether one does. What is shown is never taken back.
"""

from collections.abc import Callable, Sequence
from typing import Final

Decode = Callable[[Sequence[int]], str]
UNFINISHED: Final = "\ufffd"  # what a tokenizer writes for bytes that are not yet a character
CONTEXT: Final = 5  # tokens before the new ones that decide whether a space stands between them


class Transcript:
    """The text of one choice. `stopped` once a stop string was found: nothing follows."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._tokens: list[int] = []
        self._begin = 0  # tokens from here on are decoded again, so that spaces between words come out
        self._read = 0  # up to here their text is known
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is certain now, often that of this token, sometimes none."""
        self._tokens.append(token)
        return self._show(self._new_text(last=False), last=False)

    def end(self) -> str:
        """All that was held back: no further token comes."""
        return "" if self.stopped else self._show(self._new_text(last=True), last=True)

    def _new_text(self, last: bool) -> str:
        before = self._decode(self._tokens[self._begin : self._read])
        text = self._decode(self._tokens[self._begin :])
        if not last and text.endswith(UNFINISHED):
            return ""
        self._read = len(self._tokens)
        self._begin = max(self._begin, self._read - CONTEXT)
        return text[len(before) :]

    def _show(self, text: str, last: bool) -> str:
        if not self._stops:
            return text
        text = self._held + text
        found = min((place for stop in self._stops if (place := text.find(stop)) >= 0), default=-1)
        if found >= 0:
            self.stopped, self._held = True, ""
            return text[:found]
        keep = 0 if last else _may_begin(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _may_begin(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of `text` that a stop string begins with."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((size for size in range(longest, 0, -1) if any(s.startswith(text[-size:]) for s in stops)), 0)
