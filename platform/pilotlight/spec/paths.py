"""Field paths such as `spec.engine.runner.env[0].value`: written in problems, parsed from `--set`."""

import re
from typing import Final

from pilotlight.spec.nodes import Node
from pilotlight.spec.problems import SourceLocation

_SIMPLE_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_-]*")
# A name up to the next dot or bracket (a backslash keeps a dot in it), an index, or a quoted name.
_STEP: Final = re.compile(r'\.?((?:\\.|[^.\[\]\\])+)|\[(\d+)\]|\["([^"]*)"\]')

Step = str | int


def child_path(path: str, name: str) -> str:
    """Return the path of a map entry: `spec.engine`, or `metadata.annotations["a.b/c"]` for a key with a dot."""
    if not _SIMPLE_NAME.fullmatch(name):
        return f'{path}["{name}"]'
    return f"{path}.{name}" if path else name


def parse_path(path: str) -> list[Step] | None:
    """Split a path into its steps; None if it is malformed. `a\\.b` and `["a.b"]` both name the one key `a.b`."""
    parsed: list[Step] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or (position == 0 and path[0] == "."):
            return None
        name, index, quoted = match.groups()
        parsed.append(
            int(index) if index is not None else quoted if quoted is not None else re.sub(r"\\(.)", r"\1", name)
        )
        position = match.end()
    return parsed or None


def source_locations(node: Node, path: str = "") -> dict[str, SourceLocation]:
    """Map every path of a document to its source location: of the value for scalars, of the key for maps and lists."""
    locations: dict[str, SourceLocation] = {}
    _collect(node, path, locations)
    return locations


def _collect(node: Node, path: str, locations: dict[str, SourceLocation]) -> None:
    value = node.value
    if isinstance(value, dict):
        locations[path] = node.key_location if node.key_location.line else node.location
        for name, child in value.items():
            _collect(child, child_path(path, name), locations)
            # Also index the unquoted key: planning refers to `metadata.annotations.ome.io/deploymentMode`.
            locations.setdefault(f"{path}.{name}" if path else name, child.location)
    elif isinstance(value, list):
        locations[path] = node.key_location if node.key_location.line else node.location
        for index, child in enumerate(value):
            _collect(child, f"{path}[{index}]", locations)
    else:
        locations[path] = node.location
