"""Arguments of a `predict` that are annotated `str`, `int`, `float` or `bool`, or as lists of them.

They are inputs of one value, or of several, which the function gets as Python's values instead of arrays.
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pilotlight_predictor.core.tensors import Array, Shape, TensorSpec
from pilotlight_predictor.errors import BadRequest

_TYPES: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "str": ("BYTES", bytes.decode), "int": ("INT64", int), "float": ("FP64", float), "bool": ("BOOL", bool),
}  # fmt: skip
_ARGUMENTS: Final[Mapping[str, tuple[str, Callable[[Any], Any], Shape]]] = {
    form.format(name): (*types, shape)
    for form, shape in (("{}", (1,)), ("list[{}]", (-1,)), ("List[{}]", (-1,)))
    for name, types in _TYPES.items()
}
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def declared(tree: ast.Module, served: str) -> tuple[TensorSpec, ...]:
    """Return the inputs of the function or class that is served, if all arguments are annotated so; else none."""
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    names = {served} if served else {"predict", "Model", *(classes if len(classes) == 1 else ())}
    for node in tree.body:
        if isinstance(node, _FUNCTIONS) and node.name in names:
            return _inputs(node.args, node.args.args)
        if isinstance(node, ast.ClassDef) and node.name in names:
            for method in node.body:
                if isinstance(method, _FUNCTIONS) and method.name == "predict":
                    return _inputs(method.args, method.args.args[1:])
    return ()


def _inputs(signature: ast.arguments, arguments: Sequence[ast.arg]) -> tuple[TensorSpec, ...]:
    kinds = [ast.unparse(each.annotation).strip("'") if each.annotation else "" for each in arguments]
    others = signature.vararg or signature.kwarg or signature.kwonlyargs or signature.posonlyargs
    if others or not _ARGUMENTS.keys() >= set(kinds):
        return ()
    required = len(arguments) - len(signature.defaults)
    return tuple(
        TensorSpec(each.arg, _ARGUMENTS[kind][0], _ARGUMENTS[kind][2], optional=index >= required)
        for index, (each, kind) in enumerate(zip(arguments, kinds, strict=True))
    )


def annotations(parameters: Sequence[inspect.Parameter]) -> list[tuple[str, str]]:
    """Return name and annotation of the parameters that get Python's values."""
    pairs = [(each.name, inspect.formatannotation(each.annotation).strip("'")) for each in parameters]
    return [(name, annotation) for name, annotation in pairs if annotation in _ARGUMENTS]


def convert(name: str, annotation: str, array: Array) -> Any:
    """Return the value or list of an input. Raise BadRequest if it has another type, or several values for one."""
    (datatype, read, shape), is_text = _ARGUMENTS[annotation], array.dtype == object
    if is_text != (datatype == "BYTES") or (shape == (1,) and array.size != 1):
        given = f"{array.size} {'strings' if is_text else 'numbers'}"
        must = f"one {annotation}; annotate it list[{annotation}] for several" if shape == (1,) else annotation
        raise BadRequest(f"input '{name}' has {given}, must be {must}")
    try:
        values = [read(item) for item in array.reshape(-1)]
    except UnicodeDecodeError:
        raise BadRequest(f"input '{name}' has bytes that are not UTF-8; annotate it np.ndarray to take bytes") from None
    return values[0] if shape == (1,) else values
