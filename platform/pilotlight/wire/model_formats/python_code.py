"""What the source of a Python model names: files, packages, classes, what can be served. Executes nothing."""

import ast
import os
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

# Bounds for code that nobody has looked at: the control process parses that of organizations too.
MAX_SOURCE: Final = 1 << 20  # bytes of a file, and of the modules of a folder
MAX_NAMING_SOURCE: Final = 1 << 18  # bytes of the modules that are read for the names of files
MAX_NAMES: Final = 1000
MAX_PATH: Final = 4096
MAX_PARTS: Final = 16
METHODS: Final = ("predict", "execute", "execute_batch")  # by which the Python backend serves a class
_OF_A_PICKLE: Final = ("fit", "forward")  # of an estimator or torch module, which weights beside the code are of
_FUNCTION: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_PLAIN: Final = frozenset({"object", "ABC", "abc.ABC"})
_SERVED: Final = frozenset({"predict", "Model", "TritonPythonModel", "execute", "execute_batch", "__call__", "*"})
_PLAIN_BASES: Final = frozenset({"object", "ABC", "BaseEstimator", "TransformerMixin", "OneToOneFeatureMixin"})


class SourceNames(NamedTuple):
    """Paths that the string literals of a source may name, below its folder, and the modules that it imports."""

    files: frozenset[str]
    modules: frozenset[str]


def parse(source: bytes) -> ast.Module:
    """Return the syntax tree of a source; an empty one if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of user code, such as "\\d"
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # which is refused as a Python model
        return ast.Module([], [])


def source_names(source: bytes) -> SourceNames:
    """Return what a source names; nothing of one that is not valid Python.

    Literals that are joined by `/` or as arguments of one call are also one path: `here / "data" / "words.txt"`.
    """
    tree = parse(source)
    texts = (_relative(_path_literal(node)) for node in ast.walk(tree) if isinstance(node, ast.expr))
    files = frozenset(islice(dict.fromkeys(filter(None, texts)), MAX_NAMES))
    return SourceNames(files, frozenset(islice(dict.fromkeys(_imports(tree)), MAX_NAMES)))


def literal_paths(file: Path) -> set[str]:
    """Return the paths that a Python model may read in its folder; whether they exist is not checked.

    They are named in its own source and in the modules of the folder that it imports. PyTorch weights and pickles
    begin with the model.py there.
    """
    pending, paths, size = [file.name if file.suffix == ".py" else "model.py"], set[str](), 0
    seen = set(pending)
    for name in pending:
        source = read_source(file.parent / name, MAX_NAMING_SOURCE - size)
        size += len(source)
        names = source_names(source)
        paths |= names.files
        modules = {f"{module.partition('.')[0]}.py" for module in names.modules} - seen
        seen |= modules
        pending += sorted(modules) if len(seen) <= MAX_NAMES else ()
    return paths


def modules_with(folder: Path, name: str) -> list[Path]:
    """Return the modules of a folder that a class or function may be served from, several if it is ambiguous.

    That is its model.py if that has the name, else those that define it, else those that import or assign it, else its
    model.py, which may make it up.
    """
    model, files = folder / "model.py", sorted(folder.glob("*.py"))
    if _binds(model, name):
        return [model]
    defining = [file for file in files if name in definitions(read_source(file))]
    return defining or [file for file in files if _binds(file, name)] or [model] * model.is_file()


def _binds(file: Path, name: str) -> bool:
    return not bound_names(parse(read_source(file))).isdisjoint((name, "*"))


def served_modules(folder: Path) -> dict[Path, list[str]]:
    """Return the modules of a folder with something to serve, and its names."""
    return dict(_served_modules(folder))


def has_served_module(folder: Path) -> bool:
    return any(_served_modules(folder))


def _served_modules(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    budget = MAX_SOURCE
    for file in sorted(folder.glob("*.py")):
        source = b"" if file.name[0] in "._" else read_source(file, budget)
        budget -= len(source)
        if names := list(_served(parse(source))):
            yield file, names


def served_names(file: Path) -> list[str]:
    """Return the classes of a module that can be served, and its function `predict`.

    Those with `fit` or `forward` are estimators and torch modules.
    """
    return list(_served(parse(read_source(file))))


def definitions(source: bytes) -> list[str]:
    """Return the public classes and functions that a source defines, in order."""
    nodes = (node for node in parse(source).body if isinstance(node, (ast.ClassDef, *_FUNCTION)))
    return [node.name for node in nodes if node.name[0] != "_"]


def may_serve(code: bytes) -> bool:
    """Whether the Python backend may find in a file what it serves, if only in a base class that another file has."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # which is refused as a Python model
        return True
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {_dotted(base).rpartition(".")[2] for each in classes for base in each.bases}
    plain = _PLAIN_BASES.union(each.name for each in classes)
    return not bases <= plain or not _SERVED.isdisjoint(bound_names(tree))


def bound_names(tree: ast.Module) -> set[str]:
    """Return the names that are defined, assigned or imported anywhere, methods too; `*` as it is."""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {str(getattr(node, "asname", None) or getattr(node, "name", "")) for node in nodes}


def imported_packages(path: Path) -> set[str]:
    """Return the packages that a file, or each model.py of a repository, imports, also by the modules beside it."""
    places = ("model.py", "[0-9]*/model.py", "*/[0-9]*/model.py")
    waiting = [path] if path.is_file() else sorted({file for place in places for file in path.glob(place)})
    seen, packages = set(waiting), set[str]()
    while waiting:
        file = waiting.pop()
        for module in _imports(parse(read_source(file))):
            name = module.partition(".")[0]
            beside = [file.parent / f"{name}.py", *file.parent.glob(f"{name}/**/*.py")] if name else []
            own = [each for each in beside if each.is_file()]
            waiting += [each for each in own if each not in seen]
            seen.update(own)
            packages.update(() if own else (name,))
    return packages - {""}


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield each module that is imported anywhere, `from . import x` as x; none of the folders above."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from () if node.level > 1 else (node.module,)
        elif isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.level < 2):
            yield from (each.name for each in node.names)


def module_classes(tree: ast.Module) -> Sequence[ast.ClassDef]:
    """Return the classes of a file that are torch modules, by the names of their bases in it and of packages."""
    classes = dict[str, ast.ClassDef]()
    for node in (each for each in tree.body if isinstance(each, ast.ClassDef)):
        bases = [_dotted(base) for base in node.bases]
        if any(base.endswith("Module") or base in classes for base in bases):
            classes[node.name] = node
    return list(classes.values())


def _dotted(node: ast.expr) -> str:
    """Return a name with its packages, such as `torch.nn.Module`; empty for any other expression."""
    names = list[str]()
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed([*names, node.id])) if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes that a part of a file refers to."""
    nodes = list(ast.walk(node))
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    return names | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


def has_method(node: ast.ClassDef, names: Sequence[str]) -> bool:
    return any(isinstance(each, _FUNCTION) and each.name in names for each in node.body)


def plain_classes(code: bytes) -> Sequence[ast.ClassDef]:
    """Return the classes of a file without bases but object, ABC and each other; none if it cannot be parsed."""
    classes = dict[str, ast.ClassDef]()
    for node in parse(code).body:
        if isinstance(node, ast.ClassDef) and set(map(_dotted, node.bases)) <= _PLAIN.union(classes):
            classes[node.name] = node
    return list(classes.values())


def _served(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name[0] != "_":
            methods = {each.name for each in node.body if isinstance(each, _FUNCTION)}
            if not methods.isdisjoint(METHODS) and methods.isdisjoint(_OF_A_PICKLE):
                yield node.name
        elif isinstance(node, _FUNCTION) and node.name == "predict":
            yield node.name


def read_source(file: Path, limit: int = MAX_SOURCE) -> bytes:
    """Return the source of a module; nothing of a file that is missing, too large or none that can be read."""
    try:
        return file.read_bytes() if file.is_file() and file.stat().st_size <= limit else b""
    except OSError:
        return b""


def _path_literal(node: ast.expr, parts: int = MAX_PARTS) -> str:
    """Return the path that an expression ends with, as far as it is literal; of at most so many nested parts."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and len(node.value) < MAX_PATH else ""
    if parts == 0:
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and (last := _path_literal(node.right, parts - 1)):
        return os.path.join(_path_literal(node.left, parts - 1), last)
    if isinstance(node, ast.Call):
        last_arguments = (_path_literal(each, parts - 1) for each in reversed(node.args[-MAX_PARTS:]))
        return os.path.join("", *reversed(list(takewhile(bool, last_arguments))))
    return ""


def _relative(text: str) -> str:
    """Return a path below the folder; empty for any other, and for hidden files, such as the secrets of `.env`.

    `f"{here}/words.txt"` has a literal that begins with /.
    """
    if not text.isprintable() or len(text) > MAX_PATH:
        return ""
    path = PurePosixPath(text.lstrip("/"))
    return str(path) if path.name and not any(part.startswith(".") for part in path.parts) else ""
