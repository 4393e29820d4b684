"""Source of a class or function as a module of its own: what it refers to is found by name and written with it.

Modules become imports; functions and classes of the same notebook or script their source, recursively; values whose
repr is a literal assignments. Anything else is an error that names the variable. Nothing is pickled.
"""

import __future__

import ast
import builtins
import dis
import functools
import inspect
import linecache
import operator
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

from pilotlight.errors import UsageError
from pilotlight.sdk.model import ATTRIBUTE, model

LITERAL_BYTES: Final = 64 << 10  # a longer value belongs into a file
_READS: Final = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
_FIX: Final = "create it in initialize(), or save it to a file and name that in @pilotlight.model(files=[…])"
# How objects of libraries are saved as files.
_LIBRARIES: Final = {
    "sklearn": 'joblib.dump(model, "NAME.joblib") and deploy("NAME.joblib", trust_pickle=True)',
    "xgboost": 'model.save_model("NAME.ubj") and deploy("NAME.ubj")',
    "lightgbm": 'model.booster_.save_model("NAME.lgb") (of a Booster: model.save_model) and deploy("NAME.lgb")',
    "catboost": 'model.save_model("NAME.cbm") and deploy("NAME.cbm")',
    "torch": 'torch.export.save(torch.export.export(model, inputs), "NAME.pt2") and deploy("NAME.pt2")',
}
_PLAIN: Final = (ast.Constant, ast.UnaryOp, ast.Tuple, ast.Name)  # expressions without effects
_SCALARS: Final = (int, float, bool, str, bytes, tuple, type(None))
Node: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Definition(NamedTuple):
    """Source of a function or class, and the variables of functions around it."""

    text: str
    closure: Mapping[str, Any]


def check_library_object(served: Any) -> None:
    """Raise UsageError for an estimator or network of a library, or its class: a file holds its weights, not source."""
    kind = served if isinstance(served, type | FunctionType) else type(served)
    library = kind.__module__.partition(".")[0]
    if library in _LIBRARIES:
        what = "an untrained class" if kind is served else "a model"
        problem = f"{kind.__name__} is {what} of {library}, and models of libraries are deployed from a file"
        raise UsageError(problem, f"save the trained model: {_LIBRARIES[library]}")


def module_source(served: Any) -> str:
    """Return a module with the class, function or class of an instance. Raise UsageError for what it cannot hold."""
    kind = served if isinstance(served, type | FunctionType) else type(served)
    flags = functools.reduce(operator.or_, (each.__code__.co_flags for each in _functions(kind)), 0)
    collector = _Collector(kind.__module__, kind.__name__, flags & __future__.annotations.compiler_flag)
    collector.add(kind.__name__, kind)
    if kind is not served:
        collector.add_instance(kind.__name__, served)
    return collector.text()


class _Collector:
    """One module in the making; `owner` is the model's name, for messages."""

    def __init__(self, module: str, owner: str, flags: int) -> None:
        self._module, self._owner, self._flags = module, owner, flags
        self._globals: Mapping[str, Any] = vars(sys.modules.get(module, ModuleType(module)))
        self._seen: dict[str, Any] = {}
        self._imports = {"from __future__ import annotations": None} if flags else {}
        self._constants: list[str] = []
        self._definitions: list[str] = []

    def text(self) -> str:
        imports = sorted(self._imports, key=lambda line: (not line.startswith("from __future__"), line))
        parts = ["\n".join(imports), "\n".join(self._constants), *self._definitions]
        return "\n\n\n".join(part.strip("\n") for part in parts if part) + "\n"

    def add(self, name: str, value: Any) -> None:
        """Write what binds `name` to `value`, after what it needs itself."""
        if name in self._seen:
            text = _literal(value)
            if self._seen[name] is not value and (text is None or _literal(self._seen[name]) != text):
                raise self._error(f"two different objects are called {name!r}", "rename one of them")
            return
        self._seen[name] = value
        if isinstance(value, ModuleType):
            alias = f" as {name}" if value.__name__ != name else ""
            self._imports[f"import {value.__name__}{alias}"] = None
        elif isinstance(value, type | FunctionType) or hasattr(value, "__wrapped__"):
            self._add_definition(name, value)
        elif (line := _literal(value)) is not None:
            self._constants.append(f"{name} = {line}")
        elif not self._imported(name, value):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise self._error(f"{name!r} is a {kind}, whose value cannot be written as source", _FIX)

    def add_instance(self, name: str, instance: Any) -> None:
        """Write a class of the instance's attributes in the place of its class."""
        if not hasattr(instance, "__dict__"):
            raise self._error("an instance of a class with __slots__ cannot be written as source", "serve the class")
        attributes = {key: _literal(value) for key, value in vars(instance).items() if key != ATTRIBUTE}
        for key, text in attributes.items():
            if text is None:
                raise self._error(f"its attribute {key!r} cannot be written as source", _FIX)
        items = ", ".join(f"{key!r}: {text}" for key, text in attributes.items())
        body = f"def __init__(self) -> None:\n    vars(self).update({{{items}}})"
        self._definitions.append(f"class {name}({name}):\n{textwrap.indent(body, '    ')}")

    def _add_definition(self, name: str, value: Any) -> None:
        if value.__module__ != self._module:
            if not self._imported(name, value):
                raise self._error(f"{name!r} of {value.__module__} cannot be imported by that name", _FIX)
            return
        own = str(value.__name__)
        if own != name:  # an alias, or a decorator without functools.wraps
            if self._globals.get(own) is not value:
                raise self._error(
                    f"{name!r} is a function called {own!r}, whose source does not define it",
                    "define it with def, and use functools.wraps in its decorator",
                )
            self.add(own, value)
            self._definitions.append(f"{name} = {own}")
            return
        found = definition(value)
        if found is None:
            raise self._error(f"the source of {name!r} is not known", "define it in a cell or a file")
        self._add_names(name, found)
        node = next(each for each in ast.parse(found.text).body if isinstance(each, Node))
        if hasattr(value, "__wrapped__") and not node.decorator_list:
            raise self._error(
                f"{name!r} was wrapped after its definition", "write the wrapper above it, as a decorator"
            )
        self._definitions.append("\n".join([found.text, *self._class_changes(value, node)]))

    def _class_changes(self, value: Any, node: Node) -> Iterator[str]:
        """Yield assignments of plain class attributes that are not what the source says: set later, or by a global."""
        for each in node.body if isinstance(value, type) else ():
            if isinstance(each, ast.FunctionDef):
                live = vars(value).get(each.name)
                if isinstance(live, FunctionType) and not live.__qualname__.startswith(f"{value.__qualname__}."):
                    raise self._error(f"its method {each.name!r} was replaced", "define the class with that method")
            elif isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(each.value, _PLAIN):
                for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
                    live = vars(value).get(ast.unparse(target), self)
                    if type(live) in _SCALARS and (text := _literal(live)) not in (None, ast.unparse(each.value)):
                        yield f"{value.__name__}.{ast.unparse(target)} = {text}"

    def _add_names(self, own: str, found: Definition) -> None:
        try:
            code = compile(found.text, "model.py", "exec", self._flags, dont_inherit=True)
        except SyntaxError as error:
            raise self._error(f"its source is not self-contained: {error.msg}", "move it out of its function") from None
        for read, at_definition in dict.fromkeys(_names_read(code, at_definition=True)):
            scope = next((each for each in (found.closure, self._globals) if read in each), None)
            if read == own and at_definition:
                raise self._error(f"{own!r} is defined by an earlier {own!r}", "rename one of them")
            if read == own:
                continue
            if scope is not None and not (read.startswith("__") and read.endswith("__")):
                self.add(read, scope[read])
                self._add_submodules(found.text, read, scope[read])
            elif scope is None and at_definition and not hasattr(builtins, read) and not read.startswith("__"):
                raise self._error(f"{read!r} is a local variable of a function", "make it a global variable")

    def _add_submodules(self, text: str, name: str, module: Any) -> None:
        """Import `a.b` for the expression a.b.c: `import a.b` has bound the name a alone."""
        if not isinstance(module, ModuleType) or module.__name__ != name:
            return
        for node in ast.walk(ast.parse(text)):
            path = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if path.startswith(f"{name}.") and path in sys.modules:
                self._imports[f"import {path}"] = None

    def _imported(self, name: str, value: Any) -> bool:
        """Import an object of another module, by its own name or this one, from a public module if there is one."""
        origin = str(getattr(value, "__module__", None) or "")
        package = origin.partition(".")[0]
        own = str(getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or name)
        found = [
            (any(part.startswith("_") for part in module.split(".")), module.count("."), module, attribute)
            for module, loaded in list(sys.modules.items())
            if module not in ("__main__", "__mp_main__", self._module)  # the second is joblib's name of the first
            and module.partition(".")[0] == (package or module.partition(".")[0])
            for attribute in dict.fromkeys((own, name))
            if getattr(loaded, "__dict__", {}).get(attribute, self) is value
        ]
        if not found:
            return False
        *_, module, attribute = min(found)
        alias = f" as {name}" if attribute != name else ""
        self._imports[f"from {module} import {attribute}{alias}"] = None
        return True

    def _error(self, problem: str, fix: str) -> UsageError:
        return UsageError(f"model {self._owner!r}: {problem}", fix)


def definition(value: Any) -> Definition | None:
    """Return the source of a function or class, of a notebook's cell too; None if there is none."""
    functions = list(_functions(value))
    main = getattr(sys.modules.get(value.__module__), "__file__", None)
    files = [function.__code__.co_filename for function in functions]
    if not functions:  # a class without methods: in its module, else in the newest cell that has it
        cells = [name for name in linecache.cache if "ipython-input" in name or "ipykernel_" in name]
        files = [*filter(None, [main]), *reversed(cells)]
    closure: dict[str, Any] = {}
    for function in functions:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__" and (contents := _contents(cell)):
                closure[name] = contents[0]
    for file in dict.fromkeys(files):
        lines = linecache.getlines(file)
        first = {each.__code__.co_firstlineno for each in functions if each.__code__.co_filename == file}
        if node := _node(lines, value, first):
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            ours = [each for each in node.decorator_list if _is_model(each, closure, value.__module__)]
            left_out = {line for each in ours for line in range(each.lineno, (each.end_lineno or 0) + 1)}
            text = "".join(lines[at - 1] for at in range(begin, (node.end_lineno or 0) + 1) if at not in left_out)
            return Definition(textwrap.dedent(text).rstrip(), closure)
    return None


def _node(lines: list[str], value: Any, first: set[int]) -> Node | None:
    """Return the last definition of that name; of a known first line the one that begins or lies around there."""
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    is_class = isinstance(value, type)
    name = value.__name__ if is_class else inspect.unwrap(value).__name__
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, Node) and node.name == name and isinstance(node, ast.ClassDef) == is_class
    ]
    around = [
        node
        for node in nodes
        if any(
            min([node.lineno, *(d.lineno for d in node.decorator_list)]) <= line <= (node.end_lineno or 0)
            for line in first
        )
    ]
    found = around if first else nodes
    return found[-1] if found else None


def _is_model(decorator: ast.expr, closure: Mapping[str, Any], module: str) -> bool:
    """Whether it is @pilotlight.model, by any name; its options are for `deploy` alone."""
    first, *rest = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).split(".")
    found = closure.get(first, getattr(sys.modules.get(module), first, None))
    for name in rest:
        found = getattr(found, name, None)
    return found is model


def _functions(value: Any) -> Iterator[FunctionType]:
    """Yield the function, or the methods of a class that stand in its source."""
    members = list(vars(value).values()) if isinstance(value, type) else [value]
    for member in members:
        plain = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        plain = inspect.unwrap(plain) if callable(plain) else plain
        own = isinstance(plain, FunctionType) and plain.__module__ == value.__module__
        inside = not isinstance(value, type) or (own and plain.__qualname__.startswith(f"{value.__qualname__}."))
        if own and inside and linecache.getlines(plain.__code__.co_filename):  # methods of dataclasses have no file
            yield plain


def _contents(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not assigned yet
        return []


def _names_read(code: CodeType, *, at_definition: bool) -> Iterator[tuple[str, bool]]:
    """Yield the global names that code reads, and whether it does so when it is defined."""
    bound = set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS and instruction.argval not in bound:
            yield instruction.argval, at_definition
        elif instruction.opname == "STORE_NAME":
            bound.add(instruction.argval)
        if isinstance(instruction.argval, CodeType):
            body = instruction.argval.co_flags & inspect.CO_OPTIMIZED  # a function, unlike a class
            yield from _names_read(instruction.argval, at_definition=at_definition and not body)


def _literal(value: Any) -> str | None:
    """Return the source of a value; None if it is no literal of a moderate size."""
    if type(value) is float and repr(value) in ("inf", "-inf", "nan"):
        return f"float({repr(value)!r})"
    text = repr(value) if type(value).__module__ == "builtins" else ""
    try:
        same = len(text) <= LITERAL_BYTES and ast.literal_eval(text) == value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return text if same else None
