"""Annotations under our own domain: one that means nothing where it stands is a slip, and some slips open a door.

Whoever writes `pilotlight.dev/auth-tokens` wants nobody in without a token. Kubernetes ignores annotations that it does
not know; these are ours alone, so an unknown one is an error. Asked by `load` for every document of ours.
"""

from collections.abc import Iterator
from typing import Final

from pilotlight.errors import UsageError
from pilotlight.names import (
    ANNOTATION_CANARY,
    ANNOTATION_PARK,
    CATALOGUE_ANNOTATIONS,
    COMPONENT_ANNOTATIONS,
    DOMAIN,
    SERVICE_ANNOTATIONS,
)
from pilotlight.spec.nodes import Node
from pilotlight.spec.paths import under
from pilotlight.spec.problems import Problems
from pilotlight.spec.types import suggestion

OURS: Final = f"{DOMAIN}/"
OF_DOCUMENT: Final = "metadata.annotations"


def check_annotations(document: Node, problems: Problems) -> None:
    """Adds PL115 for each annotation of ours that nobody would read, and one of its own for a value without sense."""
    service = document.text("kind") == "InferenceService"
    on_document = SERVICE_ANNOTATIONS if service else CATALOGUE_ANNOTATIONS
    for path, node in _annotations(document, ""):
        known = on_document if path == OF_DOCUMENT else COMPONENT_ANNOTATIONS
        for name, value in _entries(node):
            if name.startswith(OURS) and name not in known:
                elsewhere = on_document if path != OF_DOCUMENT else ()
                problems.error("PL115", value.key, under(path, name), _reason(name, known, elsewhere))
            elif name == ANNOTATION_CANARY and isinstance(value.value, str):
                _check_canary(value, value.value, under(path, name), problems)
            elif name == ANNOTATION_PARK and value.value not in ("true", "false"):
                told = f'= {value.value}, must be "true" or "false"'
                problems.error("PL117", value.place, under(path, name), told)


def _check_canary(node: Node, text: str, path: str, problems: Problems) -> None:
    from pilotlight.canary.block import policy_of, read_block

    try:
        policy_of(read_block(text))
    except UsageError as wrong:
        problems.error("PL116", node.place, path, str(wrong))


def _reason(name: str, known: tuple[str, ...], elsewhere: tuple[str, ...]) -> str:
    if name in elsewhere:
        return f"has no effect here; put it under {OF_DOCUMENT}"
    short = tuple(each.removeprefix(OURS) for each in known)
    near = suggestion(name.removeprefix(OURS), short).replace("mean ", f"mean {OURS}")
    return f"is no annotation of ours{near or f'; known here are {OURS}' + ', '.join(short)}"


def _annotations(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Every map called so, wherever a component or a template has one."""
    if isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _annotations(child, f"{path}[{index}]")
    for name, child in _entries(node):
        if name == "annotations":
            yield under(path, name), child
        else:
            yield from _annotations(child, under(path, name))


def _entries(node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node.value, dict):
        yield from node.value.items()
