"""Changes of single fields in the text of a document, which keep its comments, order and quotes."""

from collections.abc import Sequence
from typing import Any

from pilotlight.spec.field_types import Step, parse_path

Node = Any  # of PyYAML, with its marks


class CannotEdit(ValueError):
    """The text has no place for the field; says why."""


def set_field(text: str, name: str, path: str, value: str) -> str:
    """Return the text with a field of the document called `name` set; missing parents are added.

    `value` is written as it is. Raise CannotEdit for a path through a list, or a document that is not there.
    """
    import yaml

    steps = parse_path(path)
    if steps is None or any(isinstance(step, int) for step in steps):
        raise CannotEdit(f"{path} is no path of fields")
    for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
        metadata = _child(document, "metadata")
        own_name = _child(metadata, "name")
        if own_name is not None and own_name.value == name:
            return _set(text, document, [str(step) for step in steps], value, path)
    raise CannotEdit(f"there is no document called {name}")


def _child(node: Node, key: str) -> Node | None:
    if getattr(node, "id", "") != "mapping":
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _set(text: str, node: Node, steps: Sequence[Step], value: str, path: str) -> str:
    child = _child(node, str(steps[0]))
    if child is not None and len(steps) > 1 and child.id == "mapping" and child.value:
        return _set(text, child, steps[1:], value, path)
    if child is not None:
        if child.id != "scalar" or len(steps) > 1:
            raise CannotEdit(f"{path} leads through something that is no mapping")
        return text[: child.start_mark.index] + value + text[child.end_mark.index :]
    if node.id != "mapping" or not node.value:
        raise CannotEdit(f"{path} leads through something that is no mapping")
    first = node.value[0][0].start_mark
    at = first.index
    if node.flow_style:
        nested = value
        for step in reversed(steps[1:]):
            nested = f"{{{_key(step)}: {nested}}}"
        return f"{text[:at]}{_key(steps[0])}: {nested}, {text[at:]}"
    lines = [f"{' ' * (2 * depth)}{_key(step)}:" for depth, step in enumerate(steps)]
    lines[-1] += f" {value}"
    indent = " " * first.column
    written = "".join(f"{indent}{line}\n" for line in lines)  # before the first field and behind its comment
    start = text.rfind("\n", 0, at) + 1
    return text[:start] + written + text[start:]


def _key(step: Step) -> str:
    text = str(step)
    return text if text.replace(".", "").replace("/", "").replace("-", "").isalnum() else f'"{text}"'
