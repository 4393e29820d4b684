"""Reader of protobuf's text format: parses a `config.pbtxt` into a tree with positions, then checks it by the schema.

Hand-written because it runs during a cold start, where importing protobuf would cost more than the whole parsing. Line
and column are computed from the offset only for errors.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pilotlight_predictor.core.message_types import EnumType, FieldType, MessageType, ScalarType, ValueType
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.repository.json_config import (
    ConfigDocument,
    Path,
    Values,
    conflicting_field,
    dotted,
    enum_value,
    expected_value,
    field_name,
    unknown_field,
)

MAX_DEPTH: Final = 100
MAX_DIGITS: Final = 40  # more than any 64-bit number, less than the limit of int()

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
_BOOLS: Final = {"true": True, "True": True, "t": True, "false": False, "False": False, "f": False}
_INFINITE: Final = re.compile(r"-?(?:inf(?:inity)?|nan)", re.IGNORECASE)


class Source(NamedTuple):
    """Text of a document and its name in errors."""

    filename: str
    text: str


class SourcePosition(NamedTuple):
    """Position of a value; printed as `file:line:column`."""

    source: Source
    offset: int

    def __str__(self) -> str:
        line = self.source.text.count("\n", 0, self.offset) + 1
        column = self.offset - self.source.text.rfind("\n", 0, self.offset)
        return f"{self.source.filename}:{line}:{column}"


class Scalar(NamedTuple):
    """Literal: bytes for a quoted string, str for a bare word such as TYPE_FP32 or true."""

    value: bytes | int | float | str
    position: SourcePosition
    text: str


class PbtxtMessage(NamedTuple):
    fields: "list[PbtxtField]"
    position: SourcePosition


class PbtxtField(NamedTuple):
    """`name: value`; `listed` if the values were in square brackets, which only a repeated field may have."""

    name: str
    values: list[Scalar | PbtxtMessage]
    listed: bool
    position: SourcePosition


class _Token(NamedTuple):
    kind: str
    text: str
    position: SourcePosition


def parse_pbtxt(text: str, filename: str) -> PbtxtMessage:
    """Return the document as a tree. Raise LoadFailed with `file:line:column` in front."""
    source = Source(filename, text)
    parser = _Parser(list(_tokens(source)))
    fields = parser.fields(until="", depth=0)
    return PbtxtMessage(fields, SourcePosition(source, 0))


def _tokens(source: Source) -> Iterator[_Token]:
    text, offset, number_end = source.text, 0, -1
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        place = SourcePosition(source, offset)
        if match is None:
            if text[offset] in "\"'":
                raise LoadFailed(f"{place}: this string is not closed on its line; end it with the same quote")
            raise LoadFailed(f"{place}: unexpected character {text[offset]!r}")
        kind = str(match.lastgroup)
        if offset == number_end and kind in {"name", "float", "integer"}:
            raise LoadFailed(f"{place}: a number must be followed by a space or a separator, not by {match.group()!r}")
        if kind != "blank":
            yield _Token(kind, match.group(), place)
        offset = match.end()
        number_end = offset if kind in {"float", "integer"} else -1
    yield _Token("end", "", SourcePosition(source, len(text)))


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, *signs: str) -> bool:
        token = self._next
        if token.kind != "sign" or token.text not in signs:
            return False
        self._at += 1
        return True

    def _failure(self, expected: str) -> LoadFailed:
        token = self._next
        actual = repr(token.text) if token.text else "the end of the text"
        return LoadFailed(f"{token.position}: expected {expected}, found {actual}")

    def fields(self, until: str, depth: int) -> list[PbtxtField]:
        """Return the fields up to the closing sign, which is consumed; an empty `until` is the end of the document."""
        if depth > MAX_DEPTH:
            raise LoadFailed(f"{self._next.position}: messages are nested deeper than {MAX_DEPTH} levels")
        fields = []
        while not (self._next.kind == "end" if not until else self._accept(until)):
            fields.append(self._field(until, depth))
            self._accept(",", ";")
        return fields

    def _field(self, until: str, depth: int) -> PbtxtField:
        name = self._next
        if name.kind != "name":
            raise self._failure(f"a field name or {until!r}" if until else "a field name")
        self._at += 1
        colon = self._accept(":")
        if not colon and not (self._next.kind == "sign" and self._next.text in "{<["):
            raise self._failure(f"':' after {name.text}")
        if self._accept("["):
            return PbtxtField(name.text, self._list(colon, depth), True, name.position)
        return PbtxtField(name.text, [self._value(colon, depth)], False, name.position)

    def _list(self, colon: bool, depth: int) -> list[Scalar | PbtxtMessage]:
        values: list[Scalar | PbtxtMessage] = []
        if self._accept("]"):
            return values
        while True:
            values.append(self._value(colon, depth))
            if self._accept("]"):
                return values
            if not self._accept(","):
                raise self._failure("',' or ']'")

    def _value(self, scalars: bool, depth: int) -> Scalar | PbtxtMessage:
        token = self._next
        if self._accept("{", "<"):
            return PbtxtMessage(self.fields(_CLOSING[token.text], depth + 1), token.position)
        if not scalars:
            raise self._failure("'{' (only messages may stand without ':')")
        if token.kind != "string":
            return self._number_or_name()
        first = self._at
        while self._next.kind == "string":  # adjacent strings are one
            self._at += 1
        strings = self._tokens[first : self._at]
        return Scalar(b"".join(map(_unquoted, strings)), token.position, " ".join(each.text for each in strings))

    def _number_or_name(self) -> Scalar:
        first = self._next
        negative = self._accept("-")
        token = self._next
        if token.kind not in {"integer", "float", "name"}:
            raise self._failure("a value")
        self._at += 1
        value = _literal(token)
        text = "-" + token.text if negative else token.text
        if not negative:
            return Scalar(value, first.position, text)
        if isinstance(value, str):
            if value.lower() not in {"inf", "infinity", "nan"}:
                raise LoadFailed(f"{first.position}: expected a number after '-', found {value!r}")
            return Scalar(text, first.position, text)
        return Scalar(-value, first.position, text)


def _literal(token: _Token) -> int | float | str:
    text = token.text
    if token.kind == "name":
        return text
    if token.kind == "float":
        return float(text.rstrip("fF"))
    if len(text) > MAX_DIGITS:
        raise LoadFailed(f"{token.position}: a number of {len(text)} digits does not fit into 64 bits")
    if text[:2] in {"0x", "0X"}:
        return int(text, 16)
    if len(text) > 1 and text[0] == "0":
        if not set(text) <= set("01234567"):
            raise LoadFailed(f"{token.position}: {text} is octal because of its leading 0, so it cannot contain 8 or 9")
        return int(text, 8)
    return int(text)


def _unquoted(token: _Token) -> bytes:
    body = token.text[1:-1]
    if "\\" not in body:
        return _encoded(body, token)
    parts, offset = [], 0
    for match in _ESCAPE.finditer(body):
        parts += [_encoded(body[offset : match.start()], token), _unescaped(match.group()[1:], token)]
        offset = match.end()
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
    raise LoadFailed(f"{token.position}: unknown escape \\{escape} in a string; write \\\\ for a backslash")


def _encoded(text: str, token: _Token) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LoadFailed(f"{token.position}: a string contains half of a surrogate pair") from None


def document_from_message(root: PbtxtMessage, type_: MessageType) -> ConfigDocument:
    places: dict[Path, SourcePosition] = {(): root.position}

    def place(path: Path) -> str:
        while path not in places:
            path = path[:-1]
        return str(places[path])

    return ConfigDocument(_Reader(places).message(root, type_, ()), place)


class _Reader:
    def __init__(self, places: dict[Path, SourcePosition]) -> None:
        self._places = places

    def message(self, node: PbtxtMessage, type_: MessageType, path: Path) -> Values:
        values: Values = {}
        for field in node.fields:
            name = field_name(field.name, type_, path)
            if name is None:
                raise LoadFailed(f"{field.position}: {unknown_field(field.name, type_, path)}")
            if other := conflicting_field(name, values, type_):
                raise LoadFailed(f"{field.position}: {dotted((*path, name))} cannot be combined with {other}; keep one")
            self._places.setdefault((*path, name), field.position)
            self._add(field, type_.fields[name], values, (*path, name))
        return values

    def _add(self, field: PbtxtField, type_: FieldType, values: Values, path: Path) -> None:
        name = str(path[-1])
        if type_.shape == "many":
            items = values.setdefault(name, [])
            for value in field.values:
                items.append(self._value(value, type_.type, (*path, len(items))))
        elif field.listed and type_.shape == "one":
            raise LoadFailed(f"{field.position}: {dotted(path)} takes one value, not a list in [ ]")
        elif type_.shape == "map":
            entries = values.setdefault(name, {})
            for value in field.values:
                self._entry(value, type_, entries, path)
        elif name in values:
            raise LoadFailed(f"{field.position}: {dotted(path)} is set twice; keep one")
        else:
            values[name] = self._value(field.values[0], type_.type, path)

    def _entry(self, node: Scalar | PbtxtMessage, type_: FieldType, entries: dict[Any, Any], path: Path) -> None:
        assert type_.key is not None
        if isinstance(node, Scalar):
            raise LoadFailed(f"{node.position}: {dotted(path)} = {node.text}, must be {{ key: … value: … }}")
        inner = _Reader({})
        values = inner.message(node, type_.entry, path)
        key = values.get("key", type_.key.default)
        self._places[(*path, str(key))] = node.position
        for inner_path, place in inner._places.items():
            if inner_path[len(path)] == "value":
                self._places[(*path, str(key), *inner_path[len(path) + 1 :])] = place
        entries[key] = values.get("value", {} if isinstance(type_.type, MessageType) else "")

    def _value(self, node: Scalar | PbtxtMessage, type_: ValueType, path: Path) -> Any:
        self._places[path] = node.position
        if isinstance(type_, MessageType):
            if isinstance(node, PbtxtMessage):
                return self.message(node, type_, path)
            raise LoadFailed(f"{node.position}: {dotted(path)} = {node.text}, must be a message in {{ }}")
        if isinstance(node, PbtxtMessage):
            raise LoadFailed(f"{node.position}: {dotted(path)} is a message, must be {expected_value(type_)}")
        value = enum_value(node.value, type_) if isinstance(type_, EnumType) else _scalar(node, type_)
        if value is None:
            raise LoadFailed(
                f"{node.position}: {dotted(path)} = {node.text}, must be {expected_value(type_, node.value)}"
            )
        return value


def _scalar(node: Scalar, type_: ScalarType) -> Any:
    value = node.value
    if type_.name == "string":
        try:
            return value.decode() if isinstance(value, bytes) else None
        except UnicodeDecodeError:
            return None
    if type_.is_integer:
        return value if isinstance(value, int) and type_.low <= value <= type_.high else None
    if type_.name == "bool":
        return {0: False, 1: True}.get(value) if isinstance(value, int) else _BOOLS.get(str(value))
    if isinstance(value, str):
        return float(value) if _INFINITE.fullmatch(value) else None
    return float(value) if isinstance(value, int | float) else None
