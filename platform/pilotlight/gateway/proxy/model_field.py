"""Incremental scan of an OpenAI request's body for its `model`: it is routed before the body is complete.

A scan gets the body piece by piece, as it arrives. Once `done`, `name` is the model, None if there is none or
if it comes `too_late`, and `start` and `end` are its place in the body, quotes included.
"""

import json
import re
from collections.abc import Mapping
from typing import Final, Protocol

MAX_NAME: Final = 512  # bytes
MAX_STEPS: Final = 1 << 17  # brackets, fields and top-level strings before the model: about 0.2 s of a core
_STRING_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_TO_STRUCTURE: Final = re.compile(rb'[^"{}\[\],:]*+')
# Within a nested value only brackets count; whole strings are skipped in one step.
_TO_BRACKET: Final = re.compile(rb'(?:[^"{}\[\]]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
MAX_PARTS, MAX_PART_HEAD = 1000, 4096  # of a form: parts, and bytes of headers of one
_BOUNDARY: Final = re.compile(r'boundary=(?:"([^"]{1,70})"|([^";,\s]{1,70}))', re.IGNORECASE)
_MODEL_PART: Final = re.compile(
    rb'^content-disposition:[^\r\n]*;[ \t]*name="?model"?[ \t]*(?:;|\r|$)', re.IGNORECASE | re.MULTILINE
)


class ModelField(Protocol):
    done: bool
    too_late: bool
    name: str | None
    start: int
    end: int

    def feed(self, piece: bytes) -> None: ...
    def replacement(self, name: str, fields: str = "") -> bytes: ...  # of the bytes from start to end


def model_field(headers: Mapping[str, str]) -> ModelField:
    """Return a scan for a body of this content type; engines take one without a type for JSON."""
    kind = headers.get("content-type", "")
    if "multipart/" not in kind.lower():
        return JsonModelField()
    boundary = _BOUNDARY.search(kind)
    return FormModelField((boundary[1] or boundary[2]).encode() if boundary else b"")


class JsonModelField:
    """Scan for the key `model` of a JSON object, not of objects in it."""

    def __init__(self) -> None:
        self.done, self.too_late, self.start, self.end = False, False, 0, 0
        self.name: str | None = None
        self._steps = 0
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

    def replacement(self, name: str, fields: str = "") -> bytes:
        """Return the name, and further fields of the object."""
        return ",".join(filter(None, (json.dumps(name), fields))).encode()

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
        if self._text is not None and self._is_key:
            self._key = _decoded(self._text)
        elif self._text is not None:
            self.name, self.end, self.done = _decoded(self._text), self._offset + end + 1, True
        return end + 1

    def _read_structure(self, piece: bytes, at: int) -> int:
        at = _end(_TO_BRACKET if self._depth > 1 else _TO_STRUCTURE, piece, at)
        if at == len(piece):
            return at
        self._steps += 1
        if self._steps > MAX_STEPS:
            self.done = self.too_late = True
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
    """Scan for the part `model` of a form, as for transcriptions of audio; it may follow the file."""

    def __init__(self, boundary: bytes) -> None:
        self.done, self.too_late, self.start, self.end = not boundary, False, 0, 0
        self.name: str | None = None
        self._delimiter = b"\r\n--" + boundary
        self._steps = 0  # parts
        self._tail = b"\r\n"  # that the first delimiter lacks
        self._offset = -2  # of the tail in the body

    def feed(self, piece: bytes) -> None:
        text, at = self._tail + piece, 0
        while not self.done and (found := text.find(self._delimiter, at)) >= 0:
            at = found
            begin = found + len(self._delimiter)
            end = text.find(b"\r\n\r\n", begin, begin + MAX_PART_HEAD)
            if end < 0 and len(text) - begin < MAX_PART_HEAD and text[begin : begin + 2] != b"--":
                break  # the rest of its headers comes with the next piece
            if end >= 0 and _MODEL_PART.search(text, begin, end) and not self._read_name(text, end + 4):
                break
            self._steps += 1
            self.too_late = self._steps > MAX_PARTS
            self.done = self.done or self.too_late or text[begin : begin + 2] == b"--"
            at = begin
        else:
            at = max(at, len(text) - len(self._delimiter))
        self._tail, self._offset = text[at:], self._offset + at

    def replacement(self, name: str, fields: str = "") -> bytes:
        return name.encode()  # a form has no JSON fields

    def _read_name(self, text: bytes, start: int) -> bool:
        """Read the part's content up to its line's end; return False if that comes with the next piece."""
        end = text.find(b"\r\n", start, start + MAX_NAME)
        if end < 0:
            return len(text) - start >= MAX_NAME
        self.name, self.done = text[start:end].decode(errors="replace"), True
        self.start, self.end = self._offset + start, self._offset + end
        return True


def _end(pattern: re.Pattern[bytes], piece: bytes, at: int) -> int:
    match = pattern.match(piece, at)
    assert match is not None  # it matches nothing, too
    return match.end()


def _decoded(text: bytearray) -> str:
    try:
        return str(json.loads(b'"%b"' % bytes(text)))
    except ValueError:  # the engine will refuse the body
        return text.decode(errors="replace")
