"""The linter itself: every rule over every object, findings in the order in which the files are written. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pilotlight.lint.parts import Document, Part, Path
from pilotlight.lint.rule import Beside, Finding
from pilotlight.lint.table import RULES
from pilotlight.spec.problems import Place

if TYPE_CHECKING:
    from pilotlight.spec.nodes import Node


def lint(
    documents: "Sequence[Document | Node | Mapping[str, Any]]", *, model_bytes: Mapping[str, int] | None = None
) -> list[Finding]:
    """What is dangerous in these objects, taken together. `model_bytes` by workload name, where a caller knows it."""
    objects = tuple(part for document in documents for part in _objects(_document(document)))
    beside = Beside(objects, model_bytes or {})
    found = [finding for part in objects for rule in RULES for finding in rule.findings(part, beside)]
    files = {file: index for index, file in enumerate(dict.fromkeys(part.place.file for part in objects))}
    return sorted(found, key=lambda finding: (files.get(finding.place.file, 0), finding.place[1:]))


def _objects(document: Document) -> Iterator[Part]:
    """The objects of a document: itself, or the items of a List, as `kubectl get -o yaml` writes them."""
    root = Part(document, (), document.value)
    if root.get("kind").text().endswith("List") and isinstance(root.get("items").value, list):
        yield from root.get("items").each()
    else:
        yield root


def _document(given: "Document | Node | Mapping[str, Any]") -> Document:
    if isinstance(given, Document):
        return given
    return Document(given) if isinstance(given, Mapping) else from_node(given)


def from_node(node: "Node") -> Document:
    """Keys stand for their values: `spec:` is where a reader looks for what `spec` lacks."""
    value = node.plain()
    return Document(value if isinstance(value, dict) else {}, dict(_places(node, ())))


def _places(node: "Node", path: Path) -> Iterator[tuple[Path, Place]]:
    yield path, node.key if node.key.line and isinstance(path[-1] if path else 0, str) else node.place
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _places(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _places(child, (*path, index))
