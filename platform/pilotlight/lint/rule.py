"""Rule and Finding. Each rule is a small function under `@rule(...)`; table.py lists them all."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any, Final, Literal, NamedTuple

from pilotlight.lint.parts import Part
from pilotlight.spec.problems import SourceLocation

Severity = Literal["error", "warning", "info"]
Hit = tuple[Part, str]
Hits = Iterable[Hit]

# Kinds as rules name them; only Knative's needs its group, since core has a Service too.
KNATIVE: Final = "serving.knative.dev/Service"
WORKLOADS: Final = ("Deployment", "StatefulSet", "LeaderWorkerSet")


@dataclass(frozen=True, slots=True)
class LintContext:
    """All objects that are linted together, and known model sizes."""

    objects: tuple[Part, ...] = ()
    model_bytes: Mapping[str, int] = field(default_factory=dict)  # by the workload's name

    def of_kind(self, *kinds: str) -> list[Part]:
        return [part for part in self.objects if kind_of(part) in kinds]


Check = Callable[[Part, LintContext], Hits]


class Finding(NamedTuple):
    """One finding. `fix` is a snippet; the reason is the rule's `why`."""

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


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `error`: rejected, or without the written effect; `warning`: dangerous; `info`: worth knowing."""

    id: str
    severity: Severity
    title: str
    kinds: tuple[str, ...]  # empty: all
    why: str
    fix: str
    check: Check

    def findings(self, part: Part, context: LintContext) -> list[Finding]:
        if self.kinds and kind_of(part) not in self.kinds:
            return []
        return [
            Finding(self.id, self.severity, hit.location, hit.name, message, self.fix, object_text(part))
            for hit, message in self.check(part, context)
        ]


def rule(
    id: str,  # noqa: A002
    severity: Severity,
    title: str,
    *kinds: str,
    why: str,
    fix: str,
) -> Callable[[Check], Rule]:
    def decorate(check: Check) -> Rule:
        return Rule(id, severity, title, kinds, " ".join(why.split()), dedent(fix).strip(), check)

    return decorate


def kind_of(part: Part) -> str:
    kind, group = part.get("kind").text(), part.get("apiVersion").text().rpartition("/")[0]
    return KNATIVE if kind == "Service" and group == "serving.knative.dev" else kind


def object_text(part: Part) -> str:
    name, namespace = part.get("metadata", "name").text("?"), part.get("metadata", "namespace").text()
    return f"{part.get('kind').text('?')} {namespace + '/' if namespace else ''}{name}"
