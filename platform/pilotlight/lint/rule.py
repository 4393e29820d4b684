"""What a rule is, and what it finds. Each rule is a small function under `@rule(...)`; table.py lists them all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any, Final, Literal, NamedTuple

from pilotlight.lint.parts import Part
from pilotlight.spec.problems import Place

Severity = Literal["error", "warning", "info"]
Hit = tuple[Part, str]
Hits = Iterable[Hit]

# Kinds as rules name them. Only Knative's needs its group: the core has a Service as well.
KNATIVE: Final = "serving.knative.dev/Service"
WORKLOADS: Final = ("Deployment", "StatefulSet", "LeaderWorkerSet")


@dataclass(frozen=True, slots=True)
class Beside:
    """All objects that are linted together, and what else is known of them."""

    objects: tuple[Part, ...] = ()
    model_bytes: Mapping[str, int] = field(default_factory=dict)  # by the workload's name

    def of_kind(self, *kinds: str) -> list[Part]:
        return [part for part in self.objects if kind_of(part) in kinds]


Check = Callable[[Part, Beside], Hits]


class Finding(NamedTuple):
    """One danger at one place. `fix` is a snippet to write, `why` stands in the rule."""

    rule: str
    severity: Severity
    place: Place
    path: str
    message: str
    fix: str
    object: str

    def __str__(self) -> str:
        where = f"{self.place}: " if str(self.place) else ""
        return f"{where}{self.severity} {self.rule}: {self.path or self.object}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """The shape of `platformctl lint -o json`: these keys, always all of them."""
        return {
            "rule": self.rule, "severity": self.severity, "object": self.object, "path": self.path,
            "file": self.place.file, "line": self.place.line, "column": self.place.column,
            "message": self.message, "fix": self.fix,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """`error`: refused, or does something else than it says. `warning`: dangerous. `info`: worth knowing."""

    id: str
    severity: Severity
    title: str
    kinds: tuple[str, ...]  # empty: all
    why: str
    fix: str
    check: Check

    def findings(self, part: Part, beside: Beside) -> list[Finding]:
        if self.kinds and kind_of(part) not in self.kinds:
            return []
        return [
            Finding(self.id, self.severity, hit.place, hit.name, message, self.fix, object_text(part))
            for hit, message in self.check(part, beside)
        ]


def rule(
    id: str,  # noqa: A002 - the word for it
    severity: Severity,
    title: str,
    *kinds: str,
    why: str,
    fix: str,
) -> Callable[[Check], Rule]:
    def made(check: Check) -> Rule:
        return Rule(id, severity, title, kinds, " ".join(why.split()), dedent(fix).strip(), check)

    return made


def kind_of(part: Part) -> str:
    kind, group = part.get("kind").text(), part.get("apiVersion").text().rpartition("/")[0]
    return KNATIVE if kind == "Service" and group == "serving.knative.dev" else kind


def object_text(part: Part) -> str:
    name, namespace = part.get("metadata", "name").text("?"), part.get("metadata", "namespace").text()
    return f"{part.get('kind').text('?')} {namespace + '/' if namespace else ''}{name}"
