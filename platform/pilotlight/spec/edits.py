"""`--set path=value`: changes to a document before it is checked, so that a slip in one is found like any other."""

from itertools import pairwise

from pilotlight.spec.nodes import Node, parse
from pilotlight.spec.paths import Step, steps
from pilotlight.spec.problems import Place, Problems


class _Refused(Exception):
    """The path does not fit the document."""


def apply(node: Node, sets: list[str] | tuple[str, ...], problems: Problems) -> None:
    """Each edit in turn, in place. `null` removes; missing maps and lists on the way are made."""
    for text in sets:
        path, equals, written = text.partition("=")
        place = Place(f"--set {text}")
        walk = steps(path.strip())
        if not equals or walk is None:
            problems.error("PL108", place, "", "must read path=value, such as spec.engine.minReplicas=0")
            continue
        try:
            _put(node, walk, _value(written, place))
        except _Refused as refused:
            problems.error("PL108", place, path, str(refused))


def _value(written: str, place: Place) -> Node:
    """YAML if it is some, else the text itself: `--set x=@handle` needs no quotes."""
    silent = Problems()
    found = parse(written, place.file, silent)
    node = Node(place, written) if silent.errors or len(found) > 1 else found[0] if found else Node(place, None)
    _relocate(node, place)
    return node


def _relocate(node: Node, place: Place) -> None:
    node.place = node.key = place
    children = node.value.values() if isinstance(node.value, dict) else node.value
    for child in children if not isinstance(children, str | int | float | None) else ():
        _relocate(child, place)


def _put(node: Node, walk: list[Step], value: Node) -> None:
    for step, following in pairwise(walk):
        node = _child(node, step, Node(value.place, [] if isinstance(following, int) else {}, value.place))
    last = walk[-1]
    if isinstance(last, int):
        items = _items(node, last)
        items[last : last + 1] = [] if value.value is None else [value]
    elif value.value is None:
        _entries(node, last).pop(last, None)
    else:
        _entries(node, last)[last] = value


def _child(node: Node, step: Step, made: Node) -> Node:
    """The next node on the way, made if there is none."""
    if isinstance(step, int):
        items = _items(node, step)
        if step == len(items):
            items.append(made)
        return items[step]
    entries = _entries(node, step)
    if step not in entries or entries[step].value is None:
        entries[step] = made
    return entries[step]


def _entries(node: Node, step: str) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise _Refused(f"{step} cannot be set: what holds it is no map")
    return node.value


def _items(node: Node, step: int) -> list[Node]:
    if not isinstance(node.value, list):
        raise _Refused(f"[{step}] cannot be set: what holds it is no list")
    if step > len(node.value):
        raise _Refused(f"[{step}] cannot be set: the list has {len(node.value)} items; the next is [{len(node.value)}]")
    return node.value
