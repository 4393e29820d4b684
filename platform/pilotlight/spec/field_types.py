"""Types that documents are validated against: the second step of reading, from nodes to plain JSON.

`read` collects every problem with its location, path, value and expectation and returns the valid rest, so that one run
reports everything that is wrong. JSON Schemas are generated from the same types (schemas/json_schema.py).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pilotlight.spec.problems import UNKNOWN_FIELD, Problems, SourceLocation
from pilotlight.spec.yaml_nodes import Node
from pilotlight.wire.messages import suggestion

Json = Any
Step = str | int
QUANTITY: Final = r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
DURATION: Final = r"0|(?:[0-9]+(?:\.[0-9]*)?(?:ns|us|µs|ms|s|m|h))+"
MAX_PATH: Final = 1000
MAX_SUGGESTIONS: Final = 100  # of a document: one takes half a millisecond
_SIMPLE_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_-]*")
# A name up to the next dot or bracket (a backslash keeps a dot in it), an index, or a quoted name.
_STEP: Final = re.compile(r'\.?((?:\\.|[^.\[\]\\])+)|\[(\d+)\]|\["([^"]*)"\]')


def child_path(path: str, name: str) -> str:
    """Return the path of a map entry: `spec.engine`, or `metadata.annotations["a.b/c"]` for a key with a dot."""
    if not _SIMPLE_NAME.fullmatch(name):
        return f'{path}["{name}"]'
    return f"{path}.{name}" if path else name


def parse_path(path: str) -> list[Step] | None:
    """Split a path into its steps; None if it is malformed. `a\\.b` and `["a.b"]` both name the one key `a.b`."""
    parsed: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (position == 0 and path[0] == "."):
            return None
        name, index, quoted = match.groups()
        text = quoted if quoted is not None else re.sub(r"\\(.)", r"\1", name or "")
        parsed.append(text if index is None else int(index))
        position = match.end()
    return parsed or None


def source_locations(node: Node, path: str = "") -> dict[str, SourceLocation]:
    """Map every path of a document to its source location: of the value for scalars, of the key for maps and lists.

    Not those below a key of MAX_PATH characters, which each would contain it.
    """
    locations: dict[str, SourceLocation] = {}
    _collect(node, path, locations)
    return locations


def _collect(node: Node, path: str, locations: dict[str, SourceLocation]) -> None:
    value = node.value
    is_leaf = len(path) > MAX_PATH or not isinstance(value, dict | list)
    locations[path] = node.location if is_leaf or not node.key_location.line else node.key_location
    if is_leaf:
        return
    if isinstance(value, dict):
        for name, child in value.items():
            _collect(child, child_path(path, name), locations)
            # Also index the unquoted key: planning refers to `metadata.annotations.ome.io/deploymentMode`.
            locations.setdefault(f"{path}.{name}" if path else name, child.location)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _collect(child, f"{path}[{index}]", locations)


class Type(Protocol):
    """A type that values are read as. `read` returns None for a null or invalid value, whose problem it has added."""

    def read(self, node: Node, path: str, problems: Problems) -> Json: ...


def read(node: Node, type: Type, problems: Problems, path: str = "") -> Json:  # noqa: A002
    """Return the plain JSON of a node as far as it fits the type; add every mismatch to the problems."""
    return None if node.value is None else type.read(node, path, problems)


def display(value: Json) -> str:
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}…"'
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _wrong_type(node: Node, path: str, problems: Problems, expected: str) -> None:
    problems.error("PL102", node.location, path, f"is {display(node.value)}, must be {expected}")


def _wrong_value(node: Node, path: str, problems: Problems, expected: str) -> None:
    problems.error("PL104", node.location, path, f"is {display(node.value)}, must be {expected}")


@dataclass(frozen=True, slots=True)
class String:
    """`expected` completes "must be …" where the pattern does not explain itself."""

    pattern: str = ""
    expected: str = "text"
    max_length: int = 0

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if not isinstance(node.value, str):
            scalar = not isinstance(node.value, dict | list)
            _wrong_type(node, path, problems, "text: put it in quotes" if scalar else self.expected)
            return None
        if self.pattern and not re.fullmatch(self.pattern, node.value):
            _wrong_value(node, path, problems, self.expected)
            return None
        if self.max_length and len(node.value) > self.max_length:
            _wrong_value(node, path, problems, f"at most {self.max_length} characters long, not {len(node.value)}")
            return None
        return node.value


@dataclass(frozen=True, slots=True)
class Boolean:
    def read(self, node: Node, path: str, problems: Problems) -> bool | None:
        if isinstance(node.value, bool):
            return node.value
        quoted = isinstance(node.value, str) and node.value.lower() in ("true", "false")
        _wrong_type(node, path, problems, "true or false, without quotes" if quoted else "true or false")
        return None


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer; `2.0` is one, as in Kubernetes."""

    minimum: int | None = None
    maximum: int | None = None

    @property
    def expected(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f"a whole number from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"a whole number of at least {self.minimum}"
        return f"a whole number of at most {self.maximum}" if self.maximum is not None else "a whole number"

    def read(self, node: Node, path: str, problems: Problems) -> int | None:
        value = node.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            quoted = isinstance(value, str) and value.strip().lstrip("+-").isdigit()
            _wrong_type(node, path, problems, self.expected + (", without quotes" if quoted else ""))
            return None
        if abs(value) >= 2**63:
            _wrong_value(node, path, problems, f"{self.expected}, in 64 bits")
            return None
        if (self.minimum is not None and value < self.minimum) or (self.maximum is not None and value > self.maximum):
            _wrong_value(node, path, problems, self.expected)
            return None
        return value


@dataclass(frozen=True, slots=True)
class Number:
    def read(self, node: Node, path: str, problems: Problems) -> float | int | None:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return node.value
        _wrong_type(node, path, problems, "a number")
        return None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A resource quantity; numbers are read as text, so that later stages see one form."""

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if isinstance(node.value, dict | list | bool) or node.value is None:
            _wrong_type(node, path, problems, "an amount such as 500m, 2 or 16Gi")
            return None
        text = str(node.value)
        if not re.fullmatch(QUANTITY, text):
            size = re.fullmatch(r"(\d[\d.]*) ?([KMGT])I?B?", text.upper())
            hint = f"; did you mean {size[1]}{size[2]}i or {size[1]}{size[2].replace('K', 'k')}?" if size else ""
            _wrong_value(node, path, problems, f"an amount such as 500m, 2 or 16Gi{hint}")
            return None
        return text


@dataclass(frozen=True, slots=True)
class IntOrString:
    """Kubernetes' IntOrString: a port by number or name, a count or a percentage."""

    def read(self, node: Node, path: str, problems: Problems) -> int | str | None:
        if isinstance(node.value, str) or (isinstance(node.value, int) and not isinstance(node.value, bool)):
            return node.value
        _wrong_type(node, path, problems, "a whole number or text")
        return None


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in Go's notation: 300s, 1h30m, 250ms."""

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if isinstance(node.value, str) and re.fullmatch(DURATION, node.value):
            return node.value
        report = _wrong_value if isinstance(node.value, str) else _wrong_type
        report(node, path, problems, "a duration with its unit, such as 90s or 1h30m")
        return None


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if isinstance(node.value, str) and node.value in self.values:
            return node.value
        report, hint = (_wrong_type, "")
        if isinstance(node.value, str):
            report, hint = _wrong_value, suggestion(node.value, self.values)
        report(node, path, problems, f"one of {', '.join(self.values)}{hint}")
        return None


@dataclass(frozen=True, slots=True)
class Anything:
    def read(self, node: Node, path: str, problems: Problems) -> Json:
        return node.plain()


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Type

    def read(self, node: Node, path: str, problems: Problems) -> list[Json] | None:
        if not isinstance(node.value, list):
            _wrong_type(node, path, problems, "a list")
            return None
        items = []
        for index, child in enumerate(node.value):
            if child.value is None:
                _wrong_type(child, f"{path}[{index}]", problems, "given, or left out of the list")
            items.append(read(child, self.item, problems, f"{path}[{index}]"))
        return [item for item in items if item is not None]


@dataclass(frozen=True, slots=True)
class ListOrMap:
    """Two types of one field, distinguished by the form of the value."""

    items: ListOf
    map: "Record"

    def read(self, node: Node, path: str, problems: Problems) -> Json:
        return (self.map if isinstance(node.value, dict) else self.items).read(node, path, problems)


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with values of one type. `key` is a pattern for the keys, `expected` describes it."""

    value: Type
    key: str = ""
    expected: str = ""

    def read(self, node: Node, path: str, problems: Problems) -> dict[str, Json] | None:
        if not isinstance(node.value, dict):
            _wrong_type(node, path, problems, "a map")
            return None
        entries = {}
        for name, child in node.value.items():
            if len(name) > MAX_PATH:
                message = f"has a key of {len(name)} characters, must have at most {MAX_PATH}"
                problems.error("PL104", child.key_location, path, message)
                continue
            if self.key and not re.fullmatch(self.key, name):
                problems.error("PL104", child.key_location, child_path(path, name), f"the key must be {self.expected}")
            entries[name] = self.value.read(child, child_path(path, name), problems)
        return {name: entry for name, entry in entries.items() if entry is not None}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record. `ignored`: written by the cluster and not read. `deprecated`: what to use instead."""

    type: Type
    description: str = ""
    required: bool = False
    ignored: bool = False
    deprecated: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A map with named fields. `hints` explain unknown names that users of other formats write here."""

    name: str
    fields: Mapping[str, Field]
    description: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)

    def read(self, node: Node, path: str, problems: Problems) -> dict[str, Json] | None:
        if not isinstance(node.value, dict):
            _wrong_type(node, path, problems, f"a map with the fields of {self.name}")
            return None
        values: dict[str, Json] = {}
        for name, child in node.value.items():
            known = self.fields.get(name)
            if known is None:
                problems.error(UNKNOWN_FIELD, child.key_location, child_path(path, name), self._unknown(name, problems))
            elif not known.ignored and child.value is not None:
                field_path = child_path(path, name)
                if known.deprecated:
                    problems.warn("PL109", child.key_location, field_path, f"is deprecated; {known.deprecated}")
                value = known.type.read(child, field_path, problems)
                if value is not None:
                    values[name] = value
        for name, known in self.fields.items():
            if known.required and (name not in node.value or node.value[name].value is None):
                location = node.key_location if node.key_location.line else node.location
                problems.error("PL103", location, child_path(path, name), "is required")
        return values

    def _unknown(self, name: str, problems: Problems) -> str:
        if name in self.hints:
            return f"unknown field of {self.name}; {self.hints[name]}"
        close = suggestion(name, self.fields) if len(problems.items) < MAX_SUGGESTIONS else ""
        if not close and len(self.fields) <= 10:
            close = f"; it has {', '.join(sorted(self.fields))}"
        return f"unknown field of {self.name}{close}"


@dataclass(frozen=True, slots=True)
class RecordRef:
    """A record by name, resolved on use: records may contain themselves, and most documents need few of them."""

    name: str
    resolve: Callable[[str], Record]

    def read(self, node: Node, path: str, problems: Problems) -> Json:
        return self.resolve(self.name).read(node, path, problems)
