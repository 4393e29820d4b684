"""Incremental scan of an OpenAI request's body for its `model`: it is routed before the body is complete.

A scan gets the body piece by piece, as it arrives. Once `done`, `name` is the model, None if there is none, and
`start` and `end` are its place in the body, quotes included.
"""

import json
import re
from collections.abc import Mapping
from typing import Final, Protocol

MAX_NAME: Final = 512  # bytes
_STRING_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_TO_STRUCTURE: Final = re.compile(rb'[^"{}\[\],:]*+')
# Within a nested value only brackets count; whole strings are skipped in one step.
_TO_BRACKET: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_FORM_FIELD: Final = re.compile(
    rb'Content-Disposition:[^\r\n]*?[; ]name="?model"?(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{0,%d})\r\n'
    % MAX_NAME,
    re.IGNORECASE,
)


class ModelField(Protocol):
    done: bool
    name: str | None
    start: int
    end: int

    def feed(self, piece: bytes) -> None: ...
    def replacement(self, name: str) -> bytes: ...  # of the bytes from start to end


def model_field(headers: Mapping[str, str]) -> ModelField:
    """Return a scan for a body of this content type; engines take one without a type for JSON."""
    return FormModelField() if "multipart/" in headers.get("content-type", "").lower() else JsonModelField()


class JsonModelField:
    """Scan for the key `model` of a JSON object, not of objects in it."""

    def __init__(self) -> None:
        self.done, self.start, self.end = False, 0, 0
        self.name: str | None = None
        self._carry = b""  # a backslash at the end of a piece
        self._offset = 0  # of the next piece in the body
        self._depth = 0
        self._in_string = self._is_key = False
        self._key = ""
        self._text: bytearray | None = None  # of a string that matters

    def feed(self, piece: bytes) -> None:
        piece = self._carry + piece
        self._carry, at = b"", 0
        while at < len(piece) - len(self._carry) and not self.done:
            at = self._read_string(piece, at) if self._in_string else self._read_structure(piece, at)
        self._offset += at

    def replacement(self, name: str) -> bytes:
        return json.dumps(name).encode()

    def _read_string(self, piece: bytes, at: int) -> int:
        end = _end(_STRING_REST, piece, at)
        if self._text is not None and len(self._text) <= MAX_NAME:
            self._text += piece[at:end]
        if end == len(piece):
            return end
        if piece[end] != ord('"'):  # a backslash, whose character comes with the next piece
            self._carry = piece[end:]
            return end
        self._in_string = False
        if self._text is not None:
            self._end_string(_decoded(self._text), self._offset + end + 1)
        return end + 1

    def _end_string(self, text: str, end: int) -> None:
        if self._is_key:
            self._key = text
        else:
            self.name, self.end, self.done = text, end, True

    def _read_structure(self, piece: bytes, at: int) -> int:
        at = _end(_TO_BRACKET if self._depth > 1 else _TO_STRUCTURE, piece, at)
        if at == len(piece):
            return at
        character = piece[at : at + 1]
        if self._depth == 0:
            self._depth, self._is_key, self.done = 1, True, character != b"{"
        elif character == b'"':
            self._in_string = True
            matters = self._depth == 1 and (self._is_key or self._key == "model")
            self._text, self.start = (bytearray(), self._offset + at) if matters else (None, 0)
        elif character in b"{[":
            self._depth += 1
        elif character in b"}]":
            self._depth -= 1
            self.done = self._depth == 0
        elif self._depth == 1:
            self.done = self._key == "model" and character == b","  # its value is no string
            self._is_key = character == b","
        return at + 1


class FormModelField:
    """Scan for the field `model` of a form, as for transcriptions of audio; it may follow the file."""

    def __init__(self) -> None:
        self.done, self.start, self.end = False, 0, 0
        self.name: str | None = None
        self._tail = b""
        self._offset = 0  # of the tail in the body

    def feed(self, piece: bytes) -> None:
        text = self._tail + piece
        match = _FORM_FIELD.search(text)
        if match is not None:
            self.name, self.done = match[1].decode(errors="replace"), True
            self.start, self.end = self._offset + match.start(1), self._offset + match.end(1)
        self._tail = text[-2 * MAX_NAME :]
        self._offset += len(text) - len(self._tail)

    def replacement(self, name: str) -> bytes:
        return name.encode()


def _end(pattern: re.Pattern[bytes], piece: bytes, at: int) -> int:
    match = pattern.match(piece, at)
    assert match is not None  # it matches nothing, too
    return match.end()


def _decoded(text: bytearray) -> str:
    try:
        return str(json.loads(b'"%b"' % bytes(text)))
    except ValueError:  # the engine will refuse the body
        return text.decode(errors="replace")
