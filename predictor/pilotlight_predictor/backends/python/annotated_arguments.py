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
_SHAPES: Final[Mapping[str, Shape]] = {
    **dict.fromkeys(_TYPES, (1,)), **{f"{several}[{one}]": (-1,) for several in ("list", "List") for one in _TYPES},
}  # fmt: skip
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
    if others or not _SHAPES.keys() >= set(kinds):
        return ()
    required = len(arguments) - len(signature.defaults)
    return tuple(
        TensorSpec(each.arg, _TYPES[_element(kind)][0], _SHAPES[kind], optional=index >= required)
        for index, (each, kind) in enumerate(zip(arguments, kinds, strict=True))
    )


def annotations(parameters: Sequence[inspect.Parameter]) -> list[tuple[str, str]]:
    """Return name and annotation of the parameters that get Python's values."""
    pairs = [(each.name, inspect.formatannotation(each.annotation).strip("'")) for each in parameters]
    return [(name, annotation) for name, annotation in pairs if annotation in _SHAPES]


def convert(name: str, annotation: str, array: Array) -> Any:
    """Return the value or list of an input. Raise BadRequest if it has another type, or several values for one."""
    kind, is_text = _element(annotation), array.dtype == object
    if is_text != (kind == "str") or (annotation == kind and array.size != 1):
        given = f"{array.size} {'strings' if is_text else 'numbers'}"
        fix = f"one {kind}; annotate it list[{kind}] for several" if annotation == kind else f"values of type {kind}"
        raise BadRequest(f"input '{name}' has {given}, must be {fix}")
    try:
        values = [_TYPES[kind][1](item) for item in array.reshape(-1)]
    except UnicodeDecodeError:
        raise BadRequest(f"input '{name}' has bytes that are not UTF-8; annotate it np.ndarray to take bytes") from None
    return values[0] if annotation == kind else values


def _element(annotation: str) -> str:
    return annotation.rpartition("[")[2].rstrip("]")
