"""The sources as the tests of this folder see them: every module of the three packages, and what each imports."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("platform/pilotlight", "predictor/pilotlight_predictor", "cli/platformctl")


@dataclass(frozen=True)
class Import:
    """`target` is as precise as the statement: `from a import b` gives `a.b`, whether or not that is a module."""

    target: str
    line: int
    at_top: bool
    type_only: bool = False


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: int

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Imports that are executed, at import time or later."""
        return tuple(found for found in self.all_imports if not found.type_only)

    @cached_property
    def all_imports(self) -> tuple[Import, ...]:
        """Imports of every kind: at the top, inside functions, and under TYPE_CHECKING."""
        return tuple(_imports(self.tree, at_top=True, type_only=False))

    @property
    def folder(self) -> str:
        """Package path of the folder that holds the module."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def place(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


@cache
def modules() -> tuple[Module, ...]:
    found = [read(path, ROOT / package) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(found) > 50, "the packages have moved: PACKAGES names folders that do not exist"
    return tuple(found)


@cache
def by_name() -> dict[str, Module]:
    return {module.name: module for module in modules()}


@cache
def edges() -> dict[str, frozenset[str]]:
    """Module to the modules of ours that it imports in any way: at run time, lazily, or for types only."""
    known = by_name()
    return {
        module.name: frozenset(
            target
            for found in module.all_imports
            if (target := _module_of(found.target, known)) is not None and target != module.name
        )
        for module in modules()
    }


def _module_of(target: str, known: dict[str, Module]) -> str | None:
    """The module that an import statement names, or None for a package that is not ours."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target or None


def read(path: Path, package: Path) -> Module:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    text = path.read_text()
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(name, path, ast.parse(text), text.count("\n"))


def _imports(node: ast.AST, at_top: bool, type_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_top, type_only) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            assert child.module is not None
            yield from (Import(f"{child.module}.{a.name}", child.lineno, at_top, type_only) for a in child.names)
        else:
            typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, at_top and not inside, type_only or typing)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")
