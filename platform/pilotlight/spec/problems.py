"""Problems of a document with their code and source location; data/problem_codes.yaml explains the codes.

Readers collect all problems instead of stopping at the first. A code has one meaning and is never reused: PL1xx for
reading a document, PL2xx for the catalogue, PL3xx for the plan; PL4xx are the rules of `platformctl lint`.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pilotlight.errors import PlatformError

Severity = Literal["error", "warning"]
UNKNOWN_FIELD: Final = "PL101"


class SourceLocation(NamedTuple):
    """File, line and column; both count from 1, and 0 means that the document came from no file."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Problem(NamedTuple):
    """One error or warning. `code` is stable (docs/reference/errors.md); `path` reads `spec.engine.minReplicas`."""

    code: str
    location: SourceLocation
    path: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.location}: " if str(self.location) else ""
        what = f"{self.path}: " if self.path else ""
        return f"{where}{self.severity} {self.code}: {what}{self.message}"


class Problems:
    """Collector that is passed down while a document is read."""

    def __init__(self) -> None:
        self.items: list[Problem] = []

    def error(self, code: str, location: SourceLocation, path: str, message: str) -> None:
        self.items.append(Problem(code, location, path, message))

    def warn(self, code: str, location: SourceLocation, path: str, message: str) -> None:
        self.items.append(Problem(code, location, path, message, "warning"))

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.items if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.items if problem.severity == "warning"]


class InvalidDocument(PlatformError):
    """A document has errors; `problems` holds all of them."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class CodeText(NamedTuple):
    """What a code means, and how to fix it."""

    what: str
    fix: str


@cache
def code_texts() -> dict[str, CodeText]:
    """Return the texts of the codes PL1xx to PL3xx, in order."""
    import yaml

    text = (Path(__file__).parent / "data" / "problem_codes.yaml").read_text(encoding="utf-8")
    return {code: CodeText(**entry) for code, entry in yaml.safe_load(text).items()}


def problem_rows(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return the problems for JSON; each has all of these keys."""
    return [
        {
            "code": problem.code, "severity": problem.severity, "path": problem.path, "message": problem.message,
            "file": problem.location.file, "line": problem.location.line, "column": problem.location.column,
        }
        for problem in problems
    ]  # fmt: skip
