"""The sources as the tests of this folder see them: every module of the three packages, and what each imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("platform/pilotlight", "predictor/pilotlight_predictor", "cli/platformctl")


@dataclass(frozen=True)
class Import:
    """`target` is as precise as the statement: `from a import b` gives `a.b`, whether or not that is a module."""

    target: str
    line: int
    at_top: bool


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.tree, at_top=True))

    def place(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@cache
def modules() -> tuple[Module, ...]:
    found = [read(path, ROOT / package) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(found) > 50, "the packages have moved: PACKAGES names folders that are not there"
    return tuple(found)


def read(path: Path, package: Path) -> Module:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    text = path.read_text()
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, ast.parse(text), text.count("\n"))


def _imports(node: ast.AST, at_top: bool) -> Iterator[Import]:
    """Everything under `if TYPE_CHECKING:` is for mypy alone and left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_top) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            assert child.module is not None
            yield from (Import(f"{child.module}.{alias.name}", child.lineno, at_top) for alias in child.names)
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, at_top and not inside)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")
