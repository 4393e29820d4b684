"""Tokens of OpenAI's and Anthropic's responses: from `usage` of a JSON body or of a stream of events.

`UsageReader` gets a response piece by piece, split at any byte, and reads no more JSON than it needs: events of a
stream until the first one with content, and those with `usage`. The clock is an argument.
"""

import json
import re
from typing import Any, Final, NamedTuple

TAIL: Final = 1 << 14  # bytes of a JSON body in which `usage` must lie: it follows the generated text
MAX_EVENT: Final = 1 << 20  # bytes of an event; a longer one passes unread
MAX_COUNT: Final = 1 << 32  # of one response: sums of what engines report must fit a counter of 64 bits
BYTES_PER_TOKEN: Final = 4  # estimate, of English text
_COUNTED: Final = {"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"}
# A quote within a string of JSON is escaped, so these match keys alone.
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(?=\{)')
_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_CONTENT: Final = re.compile(
    rb'"(?:content|text|text_output|reasoning_content|reasoning|delta|arguments|partial_json|thinking)"\s*:\s*'
    rb'"((?=[^"])[^"\\]*+(?:\\.[^"\\]*+)*+)"'
)
# Events of SGLang's /generate: the whole text so far, for each of several prompts.
_GENERATED: Final = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})\b')
_PROMPT_INDEX: Final = re.compile(rb'"index"\s*:\s*(\d{1,4})\b')
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_EVENT_CUT: Final = 3  # bytes of an end of an event that may come with the next piece


class Usage(NamedTuple):
    """Tokens of a response. `cached` are those of the prompt that the engine had in its KV cache."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


def usage_of(fields: Any) -> Usage:
    """Return the tokens of an object `usage`; of anything else none."""
    if not isinstance(fields, dict):
        return Usage()
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    read = _count(fields.get("cache_read_input_tokens"))  # Anthropic's, which `input_tokens` does not include
    prompt = _count(fields.get("prompt_tokens", fields.get("input_tokens")))
    return Usage(prompt + read, cached + read, _count(fields.get("completion_tokens", fields.get("output_tokens"))))


def _count(value: Any) -> int:
    return min(value, MAX_COUNT) if isinstance(value, int) and value > 0 else 0


class UsageReader:
    """Reader of one response. `strip`: the client did not request `usage`, so the event that has only that is removed.

    Without `usage`, as in a stream that was cut, the tokens are estimated: those of the content's bytes, at least one
    for each event with content, and those of `prompt_bytes`, 0 for a request without a prompt.
    """

    def __init__(self, stream: bool, prompt_bytes: int, strip: bool = False) -> None:
        self._stream, self._strip, self._prompt_bytes = stream, strip, prompt_bytes
        self._buffer = b""  # the end of a JSON body, or an incomplete event
        self._found: Usage | None = None
        self._events = self._size = 0  # events with content; bytes of it, or of a JSON body
        self._generated: dict[bytes, int] = {}  # tokens as SGLang reports them, by prompt
        self._ended = False
        self.first_at = self.last_at = 0.0  # of events with content; 0: none yet

    def feed(self, piece: bytes, now: float) -> bytes:
        """Take a piece of the body; return what the client gets."""
        if not self._stream:
            self._buffer = (self._buffer + piece)[-TAIL:]
            self._size += len(piece)
            return piece
        data = self._buffer + piece
        # An end of an event may be cut after any of its bytes, and `\r\n` may be half an end.
        passed, start, at = [], 0, max(0, len(self._buffer) - _EVENT_CUT)
        while (end := _EVENT_END.search(data, at)) is not None:
            event = data[start : end.end()]
            start = at = end.end()
            if self._read(event, now):
                passed.append(event)
        rest = data[start:]
        if len(rest) > MAX_EVENT:
            passed, rest = [*passed, rest], b""
        self._buffer = rest
        return b"".join(passed) if self._strip else piece

    def finish(self, now: float) -> bytes:
        """Take the end of the body; return what the client gets."""
        rest, self._ended = self._buffer, True
        if self._stream:
            self._buffer = b""
            return rest if self._read(rest, now) and self._strip else b""
        self._found = _last_usage(rest)
        return b""

    @property
    def usage(self) -> Usage:
        found, bytes_tokens = self._found, self._size // BYTES_PER_TOKEN
        estimated = bytes_tokens if self._prompt_bytes else 0
        if self._stream:
            estimated = max(self._events, bytes_tokens, sum(self._generated.values()))
        if found is None:
            return Usage(self._prompt_bytes // BYTES_PER_TOKEN, 0, estimated)
        # Of a stream that was cut, a report below its events is of its beginning, as Anthropic's first event has one.
        cut = self._stream and not self._ended and found.completion < self._events
        return found._replace(completion=estimated) if cut else found

    @property
    def per_output_token(self) -> float | None:
        """Return the seconds for each token after the first; None: there are none, or no stream."""
        later = self.usage.completion - 1
        return (self.last_at - self.first_at) / later if self.first_at and later > 0 and self._events > 1 else None

    def _read(self, event: bytes, now: float) -> bool:
        """Read an event; return whether it is for the client."""
        contents = [len(match[1]) for match in _CONTENT.finditer(event)]
        if contents:
            self._events += 1
            self.first_at, self.last_at = self.first_at or now, now
            if (generated := _GENERATED.search(event)) is None:
                self._size += sum(contents)
            else:
                index = _PROMPT_INDEX.search(event)
                self._generated[index[1] if index else b""] = int(generated[1])
        found = _last_usage(event)
        if found is None:
            return True
        # Engines may report as they go, and Anthropic's protocol has the prompt in the first event.
        self._found = Usage(*map(max, found, self._found or Usage()))
        return not (self._strip and _NO_CHOICES.search(event))


def _last_usage(data: bytes) -> Usage | None:
    """Return the last `usage` of the data: engines echo the client's tools before it, whose schema may have the key."""
    matches = list(_USAGE.finditer(data))
    if not matches:
        return None
    try:
        fields = json.JSONDecoder().raw_decode(data[matches[-1].end() :].decode(errors="replace"))[0]
    except (ValueError, RecursionError):
        return None
    return usage_of(fields) if fields.keys() & _COUNTED else None
