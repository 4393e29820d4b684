"""Arguments of a `predict` that are annotated `str` or `list[str]`: BYTES inputs, which the function gets as text.

Beside a text, `int`, `float` and `bool` are inputs of one value, which the function gets as that.
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pilotlight_predictor.core.tensors import Array, Shape, TensorSpec
from pilotlight_predictor.errors import BadRequest

_SHAPES: Final[Mapping[str, Shape]] = {"str": (1,), "list[str]": (-1,), "List[str]": (-1,)}
_SCALARS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "int": ("INT64", int), "float": ("FP64", float), "bool": ("BOOL", bool),
}  # fmt: skip
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def declared(tree: ast.Module, served: str) -> tuple[TensorSpec, ...]:
    """Return the inputs of the function or class that is served, if all arguments are annotated as text; else none."""
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
    if others or not _SHAPES.keys() & kinds or not (_SHAPES.keys() | _SCALARS.keys()).issuperset(kinds):
        return ()
    required = len(arguments) - len(signature.defaults)
    return tuple(
        TensorSpec(each.arg, _SCALARS.get(kind, ("BYTES",))[0], _SHAPES.get(kind, (1,)), optional=index >= required)
        for index, (each, kind) in enumerate(zip(arguments, kinds, strict=True))
    )


def annotations(parameters: Sequence[inspect.Parameter]) -> list[tuple[str, str]]:
    """Return name and annotation of the parameters that are annotated as text, or as a value beside one."""
    pairs = [(each.name, inspect.formatannotation(each.annotation).strip("'")) for each in parameters]
    if not any(annotation in _SHAPES for _, annotation in pairs):
        return []
    return [(name, annotation) for name, annotation in pairs if annotation in _SHAPES or annotation in _SCALARS]


def convert(name: str, annotation: str, array: Array) -> str | list[str] | int | float | bool:
    """Return the text or value of an input. Raise BadRequest if it is none, or several for a `str` or a value."""
    if annotation in _SCALARS:
        if array.dtype == object or array.size != 1:
            given = "text" if array.dtype == object else f"{array.size} values"
            raise BadRequest(f"input '{name}' has {given}, must be one {annotation}")
        value: int | float | bool = _SCALARS[annotation][1](array.reshape(-1)[0])
        return value
    one = annotation == "str"
    if array.dtype != object or (one and array.size != 1):
        given = f"{array.size} strings" if array.dtype == object else "numbers"
        raise BadRequest(f"input '{name}' has {given}, must be {'one string' if one else 'strings'}")
    try:
        texts = [item.decode() for item in array.reshape(-1)]
    except UnicodeDecodeError:
        raise BadRequest(f"input '{name}' has bytes that are not UTF-8; annotate it np.ndarray to take bytes") from None
    return texts[0] if one else texts
