"""INPUTS and OUTPUTS of a model.py: tensors that user code declares instead of a configuration.

    INPUTS = {"x": ("FP32", [-1, 4])}

The file is parsed, not run. Used by python.py and torch_modules.py.
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.tensors import DATATYPES, TensorSpec

Specs = tuple[TensorSpec, ...]
_PARSING: Final = Lock()  # ast.parse of Python 3.11 has one recursion counter for all threads


def declared(path: Path) -> tuple[Specs, Specs]:
    """Return INPUTS and OUTPUTS of a model.py. Raises LoadFailed if it cannot be parsed."""
    try:
        text = path.read_text(encoding="utf-8")
        with _PARSING:
            tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise LoadFailed(f"{path.name} is no Python that can be read: {error}") from None
    return _constant(tree, "INPUTS", path), _constant(tree, "OUTPUTS", path)


def _constant(tree: ast.Module, name: str, path: Path) -> Specs:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node, (ast.Assign, ast.AnnAssign))
            return _specs(node.value, name, path)
    return ()


def _specs(node: ast.expr | None, name: str, path: Path) -> Specs:
    try:
        value: Mapping[str, tuple[str, Sequence[int]]] = ast.literal_eval(node) if node is not None else {}
        specs = tuple(TensorSpec(key, kind, tuple(int(dim) for dim in dims)) for key, (kind, dims) in value.items())
    except (ValueError, TypeError, AttributeError):
        specs = (TensorSpec("", "", ()),)
    if any(spec.datatype not in DATATYPES for spec in specs):
        raise LoadFailed(f'{name} in {path.name} must be a literal such as {{"x": ("FP32", [-1, 4])}}')
    return specs
