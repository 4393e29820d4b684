"""A small algebra of types that documents are checked against: the second step of reading, from nodes to plain JSON.

`read` collects every problem with its place, path and value and what it must be, and returns what was right, so that
one run shows all that is wrong. JSON Schemas are generated from the same types (`json_schema`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pilotlight.spec.nodes import Node
from pilotlight.spec.paths import under
from pilotlight.spec.problems import Problems

Json = Any
QUANTITY: Final = r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
DURATION: Final = r"0|(?:[0-9]+(?:\.[0-9]*)?(?:ns|us|µs|ms|s|m|h))+"


class Type(Protocol):
    """Anything a value can be read as. None: it was null or wrong, and the problem has been told."""

    def read(self, node: Node, path: str, problems: Problems) -> Json: ...


def read(node: Node, type: Type, problems: Problems, path: str = "") -> Json:  # noqa: A002 - the word of the matter
    """The plain JSON of a node as far as it fits the type; every misfit is added to the problems."""
    return None if node.value is None else type.read(node, path, problems)


def shown(value: Json) -> str:
    """A value as a message quotes it."""
    if isinstance(value, dict | list):
        return "a map" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 60 else f'"{value[:57]}…"'
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def suggestion(wrong: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """`; did you mean minReplicas?`, or nothing. Case counts for little: most slips are in it."""
    import difflib

    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), lowered, n=1, cutoff=0.7)
    return f"; did you mean {lowered[close[0]]}?" if close else ""


def _wrong_type(node: Node, path: str, problems: Problems, must: str) -> None:
    problems.error("PL102", node.place, path, f"is {shown(node.value)}, must be {must}")


def _wrong_value(node: Node, path: str, problems: Problems, must: str) -> None:
    problems.error("PL104", node.place, path, f"is {shown(node.value)}, must be {must}")


@dataclass(frozen=True, slots=True)
class Text:
    """`must` completes "must be …" for a pattern that does not speak for itself."""

    pattern: str = ""
    must: str = "text"
    longest: int = 0

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if not isinstance(node.value, str):
            scalar = not isinstance(node.value, dict | list)
            _wrong_type(node, path, problems, "text: put it in quotes" if scalar else self.must)
            return None
        if self.pattern and not re.fullmatch(self.pattern, node.value):
            _wrong_value(node, path, problems, self.must)
            return None
        if self.longest and len(node.value) > self.longest:
            _wrong_value(node, path, problems, f"at most {self.longest} characters long, not {len(node.value)}")
            return None
        return node.value


@dataclass(frozen=True, slots=True)
class Truth:
    def read(self, node: Node, path: str, problems: Problems) -> bool | None:
        if isinstance(node.value, bool):
            return node.value
        quoted = isinstance(node.value, str) and node.value.lower() in ("true", "false")
        _wrong_type(node, path, problems, "true or false, without quotes" if quoted else "true or false")
        return None


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number. `2.0` is one, as it is for Kubernetes."""

    minimum: int | None = None
    maximum: int | None = None

    @property
    def must(self) -> str:
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
            _wrong_type(node, path, problems, self.must + (", without quotes" if quoted else ""))
            return None
        if (self.minimum is not None and value < self.minimum) or (self.maximum is not None and value > self.maximum):
            _wrong_value(node, path, problems, self.must)
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
    """An amount of a resource; numbers become their text, so that later stages see one form."""

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if isinstance(node.value, dict | list | bool) or node.value is None:
            _wrong_type(node, path, problems, "an amount such as 500m, 2 or 16Gi")
            return None
        text = str(node.value)
        if not re.fullmatch(QUANTITY, text):
            hint = "; did you mean Gi (1024³ bytes)?" if text.lower().endswith("gb") else ""
            _wrong_value(node, path, problems, f"an amount such as 500m, 2 or 16Gi{hint}")
            return None
        return text


@dataclass(frozen=True, slots=True)
class WholeOrText:
    """A port by number or name, a count or a percentage."""

    def read(self, node: Node, path: str, problems: Problems) -> int | str | None:
        if isinstance(node.value, str) or (isinstance(node.value, int) and not isinstance(node.value, bool)):
            return node.value
        _wrong_type(node, path, problems, "a whole number or text")
        return None


@dataclass(frozen=True, slots=True)
class Duration:
    """Go's notation: 300s, 1h30m, 250ms."""

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if not isinstance(node.value, str):
            _wrong_type(node, path, problems, "a duration with its unit, such as 90s or 1h30m")
            return None
        if not re.fullmatch(DURATION, node.value):
            _wrong_value(node, path, problems, "a duration with its unit, such as 90s or 1h30m")
            return None
        return node.value


@dataclass(frozen=True, slots=True)
class OneOf:
    values: tuple[str, ...]

    def read(self, node: Node, path: str, problems: Problems) -> str | None:
        if isinstance(node.value, str) and node.value in self.values:
            return node.value
        if isinstance(node.value, str):
            hint = suggestion(node.value, self.values)
            _wrong_value(node, path, problems, f"one of {', '.join(self.values)}{hint}")
        else:
            _wrong_type(node, path, problems, f"one of {', '.join(self.values)}")
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
    """Two things of one name, told apart by their form."""

    items: ListOf
    map: "Record"

    def read(self, node: Node, path: str, problems: Problems) -> Json:
        return (self.map if isinstance(node.value, dict) else self.items).read(node, path, problems)


@dataclass(frozen=True, slots=True)
class MapOf:
    """Any keys, one type of values. `key` restricts the keys to a pattern, `must` says what they must be."""

    value: Type
    key: str = ""
    must: str = ""

    def read(self, node: Node, path: str, problems: Problems) -> dict[str, Json] | None:
        if not isinstance(node.value, dict):
            _wrong_type(node, path, problems, "a map")
            return None
        entries = {}
        for name, child in node.value.items():
            if self.key and not re.fullmatch(self.key, name):
                problems.error("PL104", child.key, under(path, name), f"the key must be {self.must}")
            entries[name] = self.value.read(child, under(path, name), problems)
        return {name: entry for name, entry in entries.items() if entry is not None}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record. `ignored`: the cluster writes it, a reader passes over it. `deprecated`: what to use."""

    type: Type
    description: str = ""
    required: bool = False
    ignored: bool = False
    deprecated: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A map with named fields. `hints` answers names that users of other formats expect here."""

    name: str
    fields: Mapping[str, Field]
    description: str = ""
    hints: Mapping[str, str] = field(default_factory=dict)

    def read(self, node: Node, path: str, problems: Problems) -> dict[str, Json] | None:
        if not isinstance(node.value, dict):
            _wrong_type(node, path, problems, f"a map with the fields of {self.name}")
            return None
        found: dict[str, Json] = {}
        for name, child in node.value.items():
            known = self.fields.get(name)
            if known is None:
                problems.error("PL101", child.key, under(path, name), self._unknown(name))
            elif not known.ignored and child.value is not None:
                value = self._entry(known, child, under(path, name), problems)
                if value is not None:
                    found[name] = value
        self._missing(node, path, problems)
        return found

    def _entry(self, known: Field, child: Node, path: str, problems: Problems) -> Json:
        if known.deprecated:
            problems.warn("PL109", child.key, path, f"is deprecated; {known.deprecated}")
        return known.type.read(child, path, problems)

    def _unknown(self, name: str) -> str:
        if name in self.hints:
            return f"unknown field of {self.name}; {self.hints[name]}"
        close = suggestion(name, self.fields)
        if not close and len(self.fields) <= 10:
            close = f"; it has {', '.join(sorted(self.fields))}"
        return f"unknown field of {self.name}{close}"

    def _missing(self, node: Node, path: str, problems: Problems) -> None:
        assert isinstance(node.value, dict)
        for name, known in self.fields.items():
            if known.required and (name not in node.value or node.value[name].value is None):
                place = node.key if node.key.line else node.place
                problems.error("PL103", place, under(path, name), "is missing and required")


@dataclass(frozen=True, slots=True)
class Named:
    """A record by name, found when it is needed: types may contain themselves, and most documents need few."""

    name: str
    find: Callable[[str], Record]

    def read(self, node: Node, path: str, problems: Problems) -> Json:
        return self.find(self.name).read(node, path, problems)
