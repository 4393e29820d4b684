"""Edits by `--set path=value`, applied before validation, so that their mistakes are reported like any other."""

from itertools import pairwise

from pilotlight.spec.nodes import Node, parse
from pilotlight.spec.paths import Step, parse_path
from pilotlight.spec.problems import Problems, SourceLocation


class _PathError(Exception):
    """The path does not fit the document."""


def apply(node: Node, sets: list[str] | tuple[str, ...], problems: Problems) -> None:
    """Apply the edits in order, in place. `null` removes a field; missing parent maps and lists are created."""
    for edit in sets:
        path, equals, value = edit.partition("=")
        location = SourceLocation(f"--set {edit}")
        steps = parse_path(path.strip())
        if not equals or steps is None:
            problems.error("PL108", location, "", "must read path=value, such as spec.engine.minReplicas=0")
            continue
        try:
            _set(node, steps, _value(value, location))
        except _PathError as error:
            problems.error("PL108", location, path, str(error))


def _value(text: str, location: SourceLocation) -> Node:
    """Parse a value as YAML, else take it as text: `--set x=@handle` needs no quotes."""
    silent = Problems()
    nodes = parse(text, location.file, silent)
    node = Node(location, text) if silent.errors or len(nodes) > 1 else nodes[0] if nodes else Node(location, None)
    _relocate(node, location)
    return node


def _relocate(node: Node, location: SourceLocation) -> None:
    node.location = node.key_location = location
    children = node.value.values() if isinstance(node.value, dict) else node.value
    for child in children if not isinstance(children, str | int | float | None) else ():
        _relocate(child, location)


def _set(node: Node, steps: list[Step], value: Node) -> None:
    for step, following in pairwise(steps):
        node = _child(node, step, Node(value.location, [] if isinstance(following, int) else {}, value.location))
    last = steps[-1]
    if isinstance(last, int):
        items = _items(node, last)
        items[last : last + 1] = [] if value.value is None else [value]
    elif value.value is None:
        _entries(node, last).pop(last, None)
    else:
        _entries(node, last)[last] = value


def _child(node: Node, step: Step, default: Node) -> Node:
    """Return the child at a step, adding `default` where there is none."""
    if isinstance(step, int):
        items = _items(node, step)
        if step == len(items):
            items.append(default)
        return items[step]
    entries = _entries(node, step)
    if step not in entries or entries[step].value is None:
        entries[step] = default
    return entries[step]


def _entries(node: Node, step: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise _PathError(f"{step} cannot be set: what holds it is no map")
    return node.value


def _items(node: Node, step: int) -> list[Node]:
    if not isinstance(node.value, list):
        raise _PathError(f"[{step}] cannot be set: what holds it is no list")
    if step > len(node.value):
        raise _PathError(
            f"[{step}] cannot be set: the list has {len(node.value)} items; the next is [{len(node.value)}]"
        )
    return node.value
