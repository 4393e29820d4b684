"""Documents as the rules read them: any value at any path, with its source location.

The documents are not validated, so a `Part` never raises: a missing value, or one of another type, is an empty part
located at its nearest existing parent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pilotlight.spec.paths import child_path
from pilotlight.spec.problems import SourceLocation

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed object, with the location of each key and list item unless it came from no file."""

    value: Mapping[str, Any]
    locations: Mapping[Path, SourceLocation] = field(default_factory=dict)

    def location(self, path: Path) -> SourceLocation:
        """Return the location of a path, or of its nearest parent that has one."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.locations:
                return self.locations[path[:end]]
        return SourceLocation()


@dataclass(frozen=True, slots=True)
class Part:
    """Value at a path of a document; None if there is none."""

    document: Document
    path: Path = ()
    value: Any = None

    @property
    def location(self) -> SourceLocation:
        return self.document.location(self.path)

    @property
    def name(self) -> str:
        """Path as text: `spec.triggers[0].metadata.query`."""
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
        """Yield the items of a list; nothing for other values."""
        if isinstance(self.value, Sequence) and not isinstance(self.value, str | bytes):
            for index, item in enumerate(self.value):
                yield Part(self.document, (*self.path, index), item)

    def entries(self) -> "Iterator[Part]":
        """Yield the entries of a mapping, each a part with its `key`."""
        if isinstance(self.value, Mapping):
            for key, value in self.value.items():
                yield Part(self.document, (*self.path, str(key)), value)

    def text(self, default: str = "") -> str:
        """Return a scalar as the text sent to Kubernetes."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return str(self.value) if isinstance(self.value, str | int | float) else default

    @property
    def display(self) -> str:
        """Value as shown in a message."""
        if isinstance(self.value, Mapping):
            return "a map"
        return "null" if self.value is None else self.text("a list")

    def number(self) -> float | None:
        """Return a number, also of a text: annotations and trigger metadata are texts."""
        try:
            return None if isinstance(self.value, bool) or not self else float(self.text("nothing"))
        except ValueError:
            return None

    def integer(self, default: int) -> int:
        number = self.number()
        return int(number) if number is not None and number.is_integer() else default

    def boolean(self, default: bool) -> bool:
        """Return a boolean as Go's ParseBool reads it, ignoring case."""
        return {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}.get(
            self.text().lower(), default
        )


def path_text(path: Path) -> str:
    """Return the path as `--set` takes it: `metadata.annotations["a.b/c"]` for a key with a dot."""
    text = ""
    for step in path:
        text = f"{text}[{step}]" if isinstance(step, int) else child_path(text, step)
    return text
