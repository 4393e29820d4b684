"""YAML and JSON text parsed into nodes with source locations: the first step of reading a document.

Scalars are resolved as kubectl does, which differs from PyYAML: `1e3` is a number, `1:30` and `2024-01-15` are text.
libyaml's events are composed here because `yaml.compose` recurses in C and crashes on deeply nested text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pilotlight.spec.problems import Problems, SourceLocation

Json = Any
Scalar = str | int | float | bool | None

# Deeper than any Kubernetes object (a probe's header in a pod template is at 9), shallower than Python's stack.
MAX_DEPTH: Final = 100
# Nodes that all aliases of a text may expand to: a "billion laughs" of nine lines would expand to a billion. A scalar
# counts once more for every CHARACTERS_PER_NODE of it: 60,000 aliases of 60 kB would be written as 3.6 GB.
MAX_ALIASED: Final = 100_000
CHARACTERS_PER_NODE: Final = 100
_CORE_TAG: Final = "tag:yaml.org,2002:"
# Compiled on first use: its ranges take 10 ms, and few texts need it.
_NOT_YAML: Final = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_SURROGATES: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
_MAY_BE_NUMBER: Final = frozenset("+-.0123456789")
_INTEGER: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Python limits the length of integer literals, and Go reads longer ones as floats too.
_LONGEST_INTEGER: Final = 300


def resolve(text: str) -> Scalar:
    """Return the value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _MAY_BE_NUMBER:
        return text
    plain = text.replace("_", "")
    if len(plain) <= _LONGEST_INTEGER and _INTEGER.fullmatch(plain):
        # Go's base prefixes; a leading zero alone means octal.
        digits = plain.lstrip("+-")
        octal = len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567"
        return int(digits, 8 if octal else 0) * (-1 if plain[0] == "-" else 1)
    if _FLOAT.fullmatch(plain):
        number = float(plain)
        return text if number in (float("inf"), float("-inf")) else number
    return text


def key_text(value: Scalar) -> str | None:
    """Return a map key as JSON has it: numbers and booleans as text; None for null, which is no key."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def interpolate(text: str, environ: Mapping[str, str], location: SourceLocation, problems: Problems) -> str:
    """Replace `${NAME}` and `${NAME:-default}`; `$${` becomes `${`. An unset variable is a problem (PL107).

    Only scalars of parsed YAML are substituted, so a variable's content cannot change the structure of a document.
    """

    def replacement(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if name is None:
            return "${"
        if name in environ:
            return environ[name]
        if default is None:
            message = f"${{{name}}}: {name} is not set; set it, or write ${{{name}:-default}}"
            problems.error("PL107", location, "", message)
        return default or ""

    return _VARIABLE.sub(replacement, text)


@dataclass(slots=True)
class Node:
    """One value with its source location and that of the key that leads to it."""

    location: SourceLocation
    value: "Scalar | list[Node] | dict[str, Node]"
    key_location: SourceLocation = field(default_factory=SourceLocation)

    def get(self, name: str) -> "Node | None":
        return self.value.get(name) if isinstance(self.value, dict) else None

    def text(self, name: str) -> str:
        """Return a string field, or "" if there is none: for apiVersion and kind of a document not yet validated."""
        field_node = self.get(name)
        return field_node.value if field_node is not None and isinstance(field_node.value, str) else ""

    def plain(self) -> Json:
        """Return the value as plain JSON, without locations."""
        if isinstance(self.value, dict):
            return {name: child.plain() for name, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def copy(self) -> "Node":
        if isinstance(self.value, dict):
            return Node(self.location, {name: child.copy() for name, child in self.value.items()}, self.key_location)
        if isinstance(self.value, list):
            return Node(self.location, [child.copy() for child in self.value], self.key_location)
        return Node(self.location, self.value, self.key_location)


def node_of(value: Json, location: SourceLocation) -> Node:
    """Return parsed JSON as a node: an object of a cluster, which has no file."""
    if isinstance(value, Mapping):
        return Node(location, {name: node_of(child, location) for name, child in value.items()}, location)
    if isinstance(value, list):
        return Node(location, [node_of(child, location) for child in value], location)
    return Node(location, value, location)


class _ParseError(Exception):
    """The text cannot be parsed beyond this location."""

    def __init__(self, location: SourceLocation, message: str) -> None:
        super().__init__(message)
        self.location = location


def parse(text: str, file: str, problems: Problems, environ: Mapping[str, str] | None = None) -> list[Node]:
    """Parse all documents of a text. Return those before a syntax error, which becomes a problem (PL100).

    With `environ`, `${VARIABLE}` in values is substituted.
    """
    documents: list[Node] = []
    try:
        documents.extend(_Composer(text, file, problems, environ).documents())
    except _ParseError as error:
        problems.error("PL100", error.location, "", str(error))
    return documents


class _Composer:
    """Builds nodes in one pass over libyaml's events."""

    def __init__(self, text: str, file: str, problems: Problems, environ: Mapping[str, str] | None) -> None:
        self._file = file
        self._problems = problems
        self._environ = environ
        self._events = _events(text, file)
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0
        self._aliased = 0

    def documents(self) -> Iterator[Node]:
        for event in self._events:
            if _is(event, "DocumentStartEvent"):
                self._anchors.clear()
                node = self._node(next(self._events), 0)
                if node.value is not None:
                    yield node

    def _node(self, event: Any, depth: int) -> Node:
        location = self._location(event)
        if depth > MAX_DEPTH:
            raise _ParseError(location, f"nested deeper than {MAX_DEPTH} levels")
        if _is(event, "AliasEvent"):
            return self._alias(event.anchor, location)
        before = self._count
        self._count += 1
        if _is(event, "ScalarEvent"):
            node = Node(location, self._scalar(event, location))
            self._count += len(event.value) // CHARACTERS_PER_NODE
        elif _is(event, "SequenceStartEvent"):
            self._refuse_tag(event, "seq")
            items = []
            while not _is(child := next(self._events), "SequenceEndEvent"):
                items.append(self._node(child, depth + 1))
            node = Node(location, items)
        else:
            node = Node(location, self._map(event, depth))
        if event.anchor:
            self._anchors[event.anchor] = (node, self._count - before)
        return node

    def _alias(self, anchor: str | None, location: SourceLocation) -> Node:
        if anchor is None or anchor not in self._anchors:
            raise _ParseError(location, f"*{anchor} refers to an anchor that is not defined before it, or to itself")
        node, weight = self._anchors[anchor]
        self._aliased += weight
        if self._aliased > MAX_ALIASED:
            raise _ParseError(location, f"aliases stand for more than {MAX_ALIASED} values")
        self._count += weight
        return node.copy()

    def _scalar(self, event: Any, location: SourceLocation) -> Scalar:
        text = event.value
        if self._environ is not None and "$" in text:
            text = interpolate(text, self._environ, location, self._problems)
        tag = "" if event.tag in (None, "!") else event.tag.removeprefix(_CORE_TAG)
        if tag == "str" or (not tag and not event.implicit[0]):
            return str(text)
        value = resolve(text)
        if tag:
            value = self._tagged(tag, value, location)
        if isinstance(value, float) and value - value != 0:
            self._problems.error("PL106", location, "", f"{text} cannot be written in JSON; use a finite number")
            return None
        return value

    def _tagged(self, tag: str, value: Scalar, location: SourceLocation) -> Scalar:
        """Check that an explicit tag agrees with the value; only `!!float 1` may widen."""
        if tag == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if tag != {bool: "bool", int: "int", float: "float", type(None): "null"}.get(type(value), "timestamp"):
            message = f"tag !!{tag} does not fit {value!r}; write the value without a tag"
            self._problems.error("PL106", location, "", message)
        return value

    def _map(self, event: Any, depth: int) -> dict[str, Node]:
        self._refuse_tag(event, "map")
        entries: dict[str, Node] = {}
        merged: list[dict[str, Node]] = []
        while not _is(child := next(self._events), "MappingEndEvent"):
            key = self._node(child, depth + 1)
            value = self._node(next(self._events), depth + 1)
            value.key_location = key.location
            if key.value == "<<" and _is(child, "ScalarEvent") and child.implicit[0]:
                for source in value.value if isinstance(value.value, list) else [value]:
                    if isinstance(source.value, dict):
                        merged.append(source.value)
                    else:
                        message = "a merge key takes a map or a list of maps"
                        self._problems.error("PL106", source.location, "<<", message)
            else:
                self._add(entries, key, value)
        for inherited in merged:
            entries |= {name: node for name, node in inherited.items() if name not in entries}
        return entries

    def _add(self, entries: dict[str, Node], key: Node, value: Node) -> None:
        name = None if isinstance(key.value, list | dict) else key_text(key.value)
        if name is None:
            self._problems.error("PL106", key.location, "", "a map's key must be text")
        elif name in entries:
            first, shown = entries[name].key_location, name[:300]  # an alias repeats a long one at no cost
            message = f"{shown} is given twice, first on line {first.line}; keep one of them"
            self._problems.error("PL105", key.location, shown, message)
        else:
            entries[name] = value

    def _refuse_tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", _CORE_TAG + expected):
            tag = event.tag.replace(_CORE_TAG, "!!")
            self._problems.error("PL106", self._location(event), "", f"tag {tag} is not supported; remove it")

    def _location(self, event: Any) -> SourceLocation:
        mark = event.start_mark
        return SourceLocation(self._file, mark.line + 1, mark.column + 1)


def _is(event: Any, name: str) -> bool:
    """Compare event types by name, so that yaml is imported in `_events` only."""
    return type(event).__name__ == name


def _events(text: str, file: str) -> Iterator[Any]:
    import yaml

    text = _as_yaml(text.removeprefix("\ufeff"))
    try:
        yield from yaml.parse(text, Loader=yaml.CBaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = SourceLocation(file, mark.line + 1, mark.column + 1) if mark else SourceLocation(file)
        raise _ParseError(location, _syntax_message(error)) from None
    except (yaml.reader.ReaderError, UnicodeEncodeError):
        # libyaml reports a byte offset, which is not a column.
        match = re.search(_NOT_YAML, text)
        start = match.start() if match else 0
        location = SourceLocation(file, text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))
        raise _ParseError(location, "this character is not allowed in YAML; escape it") from None


def _syntax_message(error: Any) -> str:
    message = ", ".join(part for part in (error.context, error.problem) if part)
    if "cannot start any token" in message or "tab" in message:
        message += "; indent with spaces"
    elif "did not find expected" in message:
        message += "; check the indentation, and put values that begin with {, [, * or & in quotes"
    return f"not valid YAML: {message}"


def _as_yaml(text: str) -> str:
    """Decode surrogate pairs in JSON text: the one JSON construct that libyaml rejects."""
    if not (text.lstrip().startswith("{") and _SURROGATES.search(text)):
        return text
    try:
        json.loads(text)
    except ValueError:
        return text
    return _SURROGATES.sub(lambda pair: json.loads(f'"{pair.group()}"'), text)
