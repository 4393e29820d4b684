"""What is wrong with a document, and exactly where. Readers collect all problems; nobody stops at the first."""

from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]


class Place(NamedTuple):
    """Line and column count from 1; 0 means the document came from no file."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Problem(NamedTuple):
    """`code` is stable (`PL101`) and listed in docs/problems.md; `path` reads `spec.engine.minReplicas`."""

    code: str
    place: Place
    path: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.place}: " if str(self.place) else ""
        what = f"{self.path}: " if self.path else ""
        return f"{where}{self.severity} {self.code}: {what}{self.message}"


class Problems:
    """A collector that is passed down while a document is read."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def error(self, code: str, place: Place, path: str, message: str) -> None:
        self.found.append(Problem(code, place, path, message))

    def warn(self, code: str, place: Place, path: str, message: str) -> None:
        self.found.append(Problem(code, place, path, message, "warning"))

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.found if problem.severity == "error"]

    @property
    def warnings(self) -> list[Problem]:
        return [problem for problem in self.found if problem.severity == "warning"]
