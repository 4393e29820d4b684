"""A document as the rules see it: any value at any path without a type check, and where each key is written.

Rules read documents that nobody has validated. A `Part` therefore never raises: what is missing or of another type is
an empty part, whose place is that of the nearest parent that exists.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pilotlight.spec.problems import Place

Path = tuple[str | int, ...]
SIMPLE_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Document:
    """One object as parsed, with the place of each key and list item; without places it came from no file."""

    value: Mapping[str, Any]
    places: Mapping[Path, Place] = field(default_factory=dict)

    def place(self, path: Path) -> Place:
        """Where the path is written, or the nearest parent of it that is."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return Place()


@dataclass(frozen=True, slots=True)
class Part:
    """What stands at a path of a document. `value` is None when nothing does."""

    document: Document
    path: Path = ()
    value: Any = None

    @property
    def place(self) -> Place:
        return self.document.place(self.path)

    @property
    def name(self) -> str:
        """The path as people write it: `spec.triggers[0].metadata.query`."""
        return path_text(self.path)

    @property
    def key(self) -> str:
        return str(self.path[-1]) if self.path else ""

    def __bool__(self) -> bool:
        return self.value is not None

    def get(self, *keys: str) -> "Part":
        part = self
        for key in keys:
            inner = part.value.get(key) if isinstance(part.value, Mapping) else None
            part = Part(part.document, (*part.path, key), inner)
        return part

    def each(self) -> "Iterator[Part]":
        """The items of a list; of anything else, none."""
        if isinstance(self.value, Sequence) and not isinstance(self.value, str | bytes):
            for index, item in enumerate(self.value):
                yield Part(self.document, (*self.path, index), item)

    def entries(self) -> "Iterator[Part]":
        """The entries of a mapping, each a part whose `key` is the entry's."""
        if isinstance(self.value, Mapping):
            for key, value in self.value.items():
                yield Part(self.document, (*self.path, str(key)), value)

    def text(self, default: str = "") -> str:
        """A scalar as the text that Kubernetes would be sent."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return str(self.value) if isinstance(self.value, str | int | float) else default

    @property
    def shown(self) -> str:
        """The value in a message."""
        if isinstance(self.value, Mapping):
            return "a map"
        return "null" if self.value is None else self.text("a list")

    def number(self) -> float | None:
        """A number, or a text that is one: annotations and trigger metadata are texts."""
        try:
            return None if isinstance(self.value, bool) or not self else float(self.text("nothing"))
        except ValueError:
            return None

    def whole(self, default: int) -> int:
        number = self.number()
        return int(number) if number is not None and number.is_integer() else default

    def flag(self, default: bool) -> bool:
        """As Go's ParseBool reads a text, so far as people write it."""
        return {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}.get(
            self.text().lower(), default
        )


def path_text(path: Path) -> str:
    """As `--set` takes it: `metadata.annotations["a.b/c"]` where a dot would mislead."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif not SIMPLE_NAME.fullmatch(step):
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text
