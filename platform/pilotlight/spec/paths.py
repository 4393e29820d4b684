"""How a place inside a document is named: `spec.engine.runner.env[0].value`. Written in problems, read from `--set`."""

import re
from typing import Final

from pilotlight.spec.nodes import Node
from pilotlight.spec.problems import Place

_SIMPLE_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_-]*")
# A name up to the next dot or bracket (a backslash keeps a dot in it), an index, or a quoted name.
_STEP: Final = re.compile(r'\.?((?:\\.|[^.\[\]\\])+)|\[(\d+)\]|\["([^"]*)"\]')

Step = str | int


def under(path: str, name: str) -> str:
    """The path of a map's entry: `spec.engine`, or `metadata.annotations["a.b/c"]` where a dot would mislead."""
    if not _SIMPLE_NAME.fullmatch(name):
        return f'{path}["{name}"]'
    return f"{path}.{name}" if path else name


def steps(path: str) -> list[Step] | None:
    """A path taken apart, or None if it is none. `a\\.b` and `["a.b"]` both name the one key `a.b`."""
    found: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (position == 0 and path[0] == "."):
            return None
        name, index, quoted = match.groups()
        found.append(
            int(index) if index is not None else quoted if quoted is not None else re.sub(r"\\(.)", r"\1", name)
        )
        position = match.end()
    return found or None


def places(node: Node, path: str = "") -> dict[str, Place]:
    """Where every path of a document is written: a scalar by its value, a map or list by the key that leads to it."""
    found: dict[str, Place] = {}
    _note(node, path, found)
    return found


def _note(node: Node, path: str, found: dict[str, Place]) -> None:
    value = node.value
    if isinstance(value, dict):
        found[path] = node.key if node.key.line else node.place
        for name, child in value.items():
            _note(child, under(path, name), found)
            # The key as it stands is found too: `metadata.annotations.ome.io/deploymentMode` is how people say it.
            found.setdefault(f"{path}.{name}" if path else name, child.place)
    elif isinstance(value, list):
        found[path] = node.key if node.key.line else node.place
        for index, child in enumerate(value):
            _note(child, f"{path}[{index}]", found)
    else:
        found[path] = node.place
