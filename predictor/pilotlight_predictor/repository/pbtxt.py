"""Reads protobuf's text format into a tree of located values: the first stage of reading a `config.pbtxt`.

Written by hand because it runs during a cold start, where importing protobuf would cost more than the whole reading.
It knows the grammar only; which fields exist and what they may hold is for `schema` and `document`. Line and column
are worked out from the offset when an error needs them.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pilotlight_predictor.errors import LoadFailed

MAX_DEPTH: Final = 100
MAX_DIGITS: Final = 40  # beyond every 64-bit number, below the length at which int() refuses

_CLOSING: Final = {"{": "}", "<": ">"}
_ESCAPES: Final = {
    "n": b"\n", "r": b"\r", "t": b"\t", "a": b"\a", "b": b"\b", "f": b"\f", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"', "?": b"?",
}  # fmt: skip
_ESCAPE: Final = re.compile(r"\\(?:[0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_TOKEN: Final = re.compile(
    r"""(?P<blank>(?:[ \t\r\n\f\v]|\#[^\n]*)+)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?|[0-9]+(?:[eE][+-]?[0-9]+[fF]?|[fF]))
      | (?P<integer>0[xX][0-9a-fA-F]+|[0-9]+)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<sign>[:{}<>\[\],;-])""",
    re.VERBOSE,
)


class Source(NamedTuple):
    """A document and what to call it in an error."""

    filename: str
    text: str


class Place(NamedTuple):
    """Where a value stands; printed as `file:line:column`."""

    source: Source
    offset: int

    def __str__(self) -> str:
        line = self.source.text.count("\n", 0, self.offset) + 1
        column = self.offset - self.source.text.rfind("\n", 0, self.offset)
        return f"{self.source.filename}:{line}:{column}"


class Scalar(NamedTuple):
    """A literal: bytes for a quoted string, str for a bare word such as TYPE_FP32 or true."""

    value: bytes | int | float | str
    place: Place
    text: str


class Message(NamedTuple):
    fields: "list[Field]"
    place: Place


class Field(NamedTuple):
    """`name: value`; `listed` when the values stood in square brackets, which only a repeated field may have."""

    name: str
    values: list[Scalar | Message]
    listed: bool
    place: Place


class _Token(NamedTuple):
    kind: str
    text: str
    place: Place


def parse_pbtxt(text: str, filename: str) -> Message:
    """The document as a tree; raises LoadFailed that starts with `file:line:column`."""
    source = Source(filename, text)
    parser = _Parser(list(_tokens(source)))
    fields = parser.fields(until="", depth=0)
    return Message(fields, Place(source, 0))


def _tokens(source: Source) -> Iterator[_Token]:
    text, offset, number_end = source.text, 0, -1
    while offset < len(text):
        found = _TOKEN.match(text, offset)
        place = Place(source, offset)
        if found is None:
            raise LoadFailed(f"{place}: {_unreadable(text[offset])}")
        kind = str(found.lastgroup)
        if offset == number_end and kind in {"name", "float", "integer"}:
            raise LoadFailed(f"{place}: a number must be followed by a space or a separator, not by {found.group()!r}")
        if kind != "blank":
            yield _Token(kind, found.group(), place)
        offset = found.end()
        number_end = offset if kind in {"float", "integer"} else -1
    yield _Token("end", "", Place(source, len(text)))


def _unreadable(character: str) -> str:
    if character in "\"'":
        return "this string is not closed on its line; end it with the same quote"
    return f"unexpected character {character!r}"


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _took(self, *signs: str) -> bool:
        token = self._next
        if token.kind != "sign" or token.text not in signs:
            return False
        self._at += 1
        return True

    def _failure(self, wanted: str) -> LoadFailed:
        token = self._next
        found = repr(token.text) if token.text else "the end of the file"
        return LoadFailed(f"{token.place}: expected {wanted}, found {found}")

    def fields(self, until: str, depth: int) -> list[Field]:
        """Fields up to the closing sign, which is consumed; the empty `until` is the end of the document."""
        if depth > MAX_DEPTH:
            raise LoadFailed(f"{self._next.place}: messages are nested deeper than {MAX_DEPTH} levels")
        fields = []
        while not (self._next.kind == "end" if not until else self._took(until)):
            fields.append(self._field(until, depth))
            self._took(",", ";")
        return fields

    def _field(self, until: str, depth: int) -> Field:
        name = self._next
        if name.kind != "name":
            raise self._failure(f"a field name or {until!r}" if until else "a field name")
        self._at += 1
        colon = self._took(":")
        if not colon and not (self._next.kind == "sign" and self._next.text in "{<["):
            raise self._failure(f"':' after {name.text}")
        if self._took("["):
            return Field(name.text, self._list(colon, depth), True, name.place)
        return Field(name.text, [self._value(colon, depth)], False, name.place)

    def _list(self, colon: bool, depth: int) -> list[Scalar | Message]:
        values: list[Scalar | Message] = []
        if self._took("]"):
            return values
        while True:
            values.append(self._value(colon, depth))
            if self._took("]"):
                return values
            if not self._took(","):
                raise self._failure("',' or ']'")

    def _value(self, scalars: bool, depth: int) -> Scalar | Message:
        token = self._next
        if self._took("{", "<"):
            return Message(self.fields(_CLOSING[token.text], depth + 1), token.place)
        if not scalars:
            raise self._failure("'{' (only messages may stand without ':')")
        if token.kind == "string":
            return self._string()
        return self._number_or_name()

    def _string(self) -> Scalar:
        first, parts, texts = self._next, [], []
        while self._next.kind == "string":
            token = self._take()
            parts.append(_unquoted(token))
            texts.append(token.text)
        return Scalar(b"".join(parts), first.place, " ".join(texts))

    def _number_or_name(self) -> Scalar:
        first = self._next
        negative = self._took("-")
        token = self._next
        if token.kind not in {"integer", "float", "name"}:
            raise self._failure("a value")
        self._at += 1
        value = _literal(token)
        text = "-" + token.text if negative else token.text
        if not negative:
            return Scalar(value, first.place, text)
        if isinstance(value, str):
            if value.lower() not in {"inf", "infinity", "nan"}:
                raise LoadFailed(f"{first.place}: expected a number after '-', found {value!r}")
            return Scalar(text, first.place, text)
        return Scalar(-value, first.place, text)


def _literal(token: _Token) -> int | float | str:
    text = token.text
    if token.kind == "name":
        return text
    if token.kind == "float":
        return float(text.rstrip("fF"))
    if len(text) > MAX_DIGITS:
        raise LoadFailed(f"{token.place}: a number of {len(text)} digits does not fit into 64 bits")
    if text[:2] in {"0x", "0X"}:
        return int(text, 16)
    if len(text) > 1 and text[0] == "0":
        if not set(text) <= set("01234567"):
            raise LoadFailed(
                f"{token.place}: {text} is read as octal because of its leading 0, so 8 and 9 cannot occur"
            )
        return int(text, 8)
    return int(text)


def _unquoted(token: _Token) -> bytes:
    body = token.text[1:-1]
    if "\\" not in body:
        return _encoded(body, token)
    parts, offset = [], 0
    for found in _ESCAPE.finditer(body):
        parts += [_encoded(body[offset : found.start()], token), _unescaped(found.group()[1:], token)]
        offset = found.end()
    return b"".join([*parts, _encoded(body[offset:], token)])


def _unescaped(escape: str, token: _Token) -> bytes:
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    if escape[0] in "01234567":
        return bytes([int(escape, 8) & 0xFF])
    if escape[0] in "xX" and len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    if escape[0] in "uU" and len(escape) > 1 and int(escape[1:], 16) <= 0x10FFFF:
        return _encoded(chr(int(escape[1:], 16)), token)
    raise LoadFailed(f"{token.place}: unknown escape \\{escape} in a string; write \\\\ for a backslash")


def _encoded(text: str, token: _Token) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LoadFailed(f"{token.place}: half of a surrogate pair stands in a string") from None
