"""Python files of users, by their text: packages that they import, and classes of torch modules. Executes nothing."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

# Methods by which the Python backend serves a class.
SERVING_METHODS: Final = ("predict", "execute", "execute_batch")
_PLAIN: Final = frozenset({"object", "ABC", "abc.ABC"})
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def parse(code: bytes) -> ast.Module:
    """Return the syntax tree of a file's content; an empty one if it cannot be parsed."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def imported_packages(path: Path) -> set[str]:
    """Return the packages that a file, or each model.py of a folder, imports, also by the modules beside it."""
    waiting = [path] if path.is_file() else sorted(path.rglob("model.py"))
    seen, packages = set(waiting), set[str]()
    while waiting:
        file = waiting.pop()
        for module in _imports(parse(file.read_bytes())):
            name = module.partition(".")[0]
            beside = [file.parent / f"{name}.py", *file.parent.glob(f"{name}/**/*.py")] if name else []
            own = [each for each in beside if each.is_file()]
            waiting += [each for each in own if each not in seen]
            seen.update(own)
            packages.update(() if own else (name,))
    return packages - {""}


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield each module that is imported anywhere, `from . import x` as x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (each.name for each in node.names)


def module_classes(tree: ast.Module) -> Sequence[ast.ClassDef]:
    """Return the classes of a file that are torch modules, by the names of their bases in it and of packages."""
    found = dict[str, ast.ClassDef]()
    for node in (each for each in tree.body if isinstance(each, ast.ClassDef)):
        bases = [ast.unparse(base) for base in node.bases]
        if any(base.endswith("Module") or base in found for base in bases):
            found[node.name] = node
    return list(found.values())


def names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes that a part of a file refers to."""
    nodes = list(ast.walk(node))
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    return names | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


def has_method(node: ast.ClassDef, names: Sequence[str]) -> bool:
    return any(isinstance(each, _DEFINITIONS) and each.name in names for each in node.body)


def plain_classes(code: bytes) -> Sequence[ast.ClassDef]:
    """Return the classes of a file without bases but object, ABC and each other; none if it cannot be parsed."""
    found = dict[str, ast.ClassDef]()
    for node in parse(code).body:
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} <= _PLAIN.union(found):
            found[node.name] = node
    return list(found.values())
