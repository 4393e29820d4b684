"""Validation of annotations under `pilotlight.dev/`, run by `load` on every document.

An unknown one is an error, although Kubernetes would ignore it: a misspelt `pilotlight.dev/auth-tokens` would leave a
service open to requests without a token.
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
from pilotlight.spec.paths import child_path
from pilotlight.spec.problems import Problems
from pilotlight.spec.types import suggestion

PREFIX: Final = f"{DOMAIN}/"
OF_DOCUMENT: Final = "metadata.annotations"


def check_annotations(document: Node, problems: Problems) -> None:
    """Report annotations of our domain that have no effect (PL115), and invalid values (PL116, PL117)."""
    service = document.text("kind") == "InferenceService"
    on_document = SERVICE_ANNOTATIONS if service else CATALOGUE_ANNOTATIONS
    for path, node in _annotations(document, ""):
        known = on_document if path == OF_DOCUMENT else COMPONENT_ANNOTATIONS
        for name, value in _entries(node):
            if name.startswith(PREFIX) and name not in known:
                elsewhere = on_document if path != OF_DOCUMENT else ()
                problems.error("PL115", value.key_location, child_path(path, name), _reason(name, known, elsewhere))
            elif name == ANNOTATION_CANARY and isinstance(value.value, str):
                _check_canary(value, value.value, child_path(path, name), problems)
            elif name == ANNOTATION_PARK and value.value not in ("true", "false"):
                message = f'= {value.value}, must be "true" or "false"'
                problems.error("PL117", value.location, child_path(path, name), message)


def _check_canary(node: Node, text: str, path: str, problems: Problems) -> None:
    from pilotlight.canary.block import parse_block, parse_policy

    try:
        parse_policy(parse_block(text))
    except UsageError as error:
        problems.error("PL116", node.location, path, str(error))


def _reason(name: str, known: tuple[str, ...], elsewhere: tuple[str, ...]) -> str:
    if name in elsewhere:
        return f"has no effect here; put it under {OF_DOCUMENT}"
    short = tuple(each.removeprefix(PREFIX) for each in known)
    near = suggestion(name.removeprefix(PREFIX), short).replace("mean ", f"mean {PREFIX}")
    return f"is no annotation of ours{near or f'; known here are {PREFIX}' + ', '.join(short)}"


def _annotations(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield path and node of every map called `annotations`, at any depth."""
    if isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _annotations(child, f"{path}[{index}]")
    for name, child in _entries(node):
        if name == "annotations":
            yield child_path(path, name), child
        else:
            yield from _annotations(child, child_path(path, name))


def _entries(node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node.value, dict):
        yield from node.value.items()
