"""Arguments of a `predict` that are annotated `str` or `list[str]`: BYTES inputs, which the function gets as text."""

import ast
import inspect
from collections.abc import Mapping, Sequence
from typing import Final

from pilotlight_predictor.core.tensors import Array, Shape, TensorSpec
from pilotlight_predictor.errors import BadRequest

_SHAPES: Final[Mapping[str, Shape]] = {"str": (1,), "list[str]": (-1,), "List[str]": (-1,)}
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
    shapes = [_SHAPES.get(ast.unparse(each.annotation).strip("'")) for each in arguments if each.annotation]
    others = signature.vararg or signature.kwarg or signature.kwonlyargs or signature.posonlyargs
    if others or None in shapes or len(shapes) != len(arguments):
        return ()
    required = len(arguments) - len(signature.defaults)
    return tuple(
        TensorSpec(each.arg, "BYTES", shape or (), optional=index >= required)
        for index, (each, shape) in enumerate(zip(arguments, shapes, strict=True))
    )


def annotations(parameters: Sequence[inspect.Parameter]) -> list[tuple[str, str]]:
    """Return name and annotation of the parameters that are annotated as text."""
    pairs = [(each.name, inspect.formatannotation(each.annotation).strip("'")) for each in parameters]
    return [(name, annotation) for name, annotation in pairs if annotation in _SHAPES]


def convert(name: str, annotation: str, array: Array) -> str | list[str]:
    """Return the text of an input. Raise BadRequest if it is none, or several strings for a `str`."""
    one = annotation == "str"
    if array.dtype != object or (one and array.size != 1):
        given = f"{array.size} strings" if array.dtype == object else "numbers"
        raise BadRequest(f"input '{name}' has {given}, must be {'one string' if one else 'strings'}")
    try:
        texts = [item.decode() for item in array.reshape(-1)]
    except UnicodeDecodeError:
        raise BadRequest(f"input '{name}' has bytes that are not UTF-8; annotate it np.ndarray to take bytes") from None
    return texts[0] if one else texts
