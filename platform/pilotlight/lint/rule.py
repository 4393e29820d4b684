"""Rule, Finding, and documents as the rules read them: any value at any path, with its source location.

The documents are not validated, so a `Part` never raises: a missing value, or one of another type, is an empty part
located at its nearest existing parent. Each rule is a small function under `@rule(id)`; rules.yaml has its texts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, yaml

from pilotlight.spec.field_types import child_path
from pilotlight.spec.problems import SourceLocation

FieldPath = tuple[str | int, ...]
Severity = Literal["error", "warning", "info"]

# Kinds as rules name them; only Knative's needs its group, since core has a Service too.
KNATIVE: Final = "serving.knative.dev/Service"
WORKLOADS: Final = ("Deployment", "StatefulSet", "LeaderWorkerSet")


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed object, with the location of each key and list item unless it came from no file."""

    value: Mapping[str, Any]
    locations: Mapping[FieldPath, SourceLocation] = field(default_factory=dict)

    def location(self, path: FieldPath) -> SourceLocation:
        """Return the location of a path, or of its nearest parent that has one."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.locations:
                return self.locations[path[:end]]
        return SourceLocation()


@dataclass(frozen=True, slots=True)
class Part:
    """Value at a path of a document; None if there is none."""

    document: Document
    path: FieldPath = ()
    value: Any = None

    @property
    def location(self) -> SourceLocation:
        return self.document.location(self.path)

    @property
    def name(self) -> str:
        """FieldPath as text: `spec.triggers[0].metadata.query`."""
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
        """Return a number, also of a string: annotations and trigger metadata are strings."""
        try:
            return None if isinstance(self.value, bool) or not self else float(self.text("nothing"))
        except ValueError:
            return None

    def integer(self, default: int) -> int:
        number = self.number()
        return int(number) if number is not None and number.is_integer() else default

    def boolean(self, default: bool) -> bool:
        """Return a boolean as Go's ParseBool reads it, ignoring case."""
        values = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
        return values.get(self.text().lower(), default)


def path_text(path: FieldPath) -> str:
    """Return the path as `--set` takes it: `metadata.annotations["a.b/c"]` for a key with a dot."""
    text = ""
    for step in path:
        text = f"{text}[{step}]" if isinstance(step, int) else child_path(text, step)
    return text


Hits = Iterable[tuple[Part, str]]


@dataclass(frozen=True, slots=True)
class LintContext:
    """All objects that are linted together, and known model sizes."""

    objects: tuple[Part, ...] = ()
    model_bytes: Mapping[str, int] = field(default_factory=dict)  # by the workload's name

    def of_kind(self, *kinds: str) -> list[Part]:
        return [part for part in self.objects if kind_of(part) in kinds]


Check = Callable[[Part, LintContext], Hits]


class Finding(NamedTuple):
    """One finding. `fix` is a snippet; rules.yaml has the rule's reason."""

    rule: str
    severity: Severity
    location: SourceLocation
    path: str
    message: str
    fix: str
    object: str

    def __str__(self) -> str:
        where = f"{self.location}: " if str(self.location) else ""
        return f"{where}{self.severity} {self.rule}: {self.path or self.object}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `platformctl lint -o json`; always all keys."""
        return {
            "rule": self.rule, "severity": self.severity, "object": self.object, "path": self.path,
            "file": self.location.file, "line": self.location.line, "column": self.location.column,
            "message": self.message, "fix": self.fix,
        }  # fmt: skip


class RuleText(Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of rules.yaml. `error`: rejected, or without the written effect; `warning`: dangerous; `info`: a hint."""

    severity: Severity
    title: str
    kinds: Sequence[str]  # empty: all
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    check: Check

    @property
    def text(self) -> RuleText:
        return _texts()[self.id]

    def findings(self, part: Part, context: LintContext) -> list[Finding]:
        text = self.text
        if text.kinds and kind_of(part) not in text.kinds:
            return []
        name, namespace = part.get("metadata", "name").text("?"), part.get("metadata", "namespace").text()
        subject = f"{part.get('kind').text('?')} {namespace + '/' if namespace else ''}{name}"
        return [
            Finding(self.id, text.severity, hit.location, hit.name, message, text.fix, subject)
            for hit, message in self.check(part, context)
        ]


def rule(code: str) -> Callable[[Check], Rule]:
    return partial(Rule, code)


@cache
def _texts() -> dict[str, RuleText]:
    """Read rules.yaml, with the first object that is linted."""
    return yaml.decode(Path(__file__).with_name("rules.yaml").read_bytes(), type=dict[str, RuleText])


def kind_of(part: Part) -> str:
    kind, group = part.get("kind").text(), part.get("apiVersion").text().rpartition("/")[0]
    return KNATIVE if kind == "Service" and group == "serving.knative.dev" else kind
