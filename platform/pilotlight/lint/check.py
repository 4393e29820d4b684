"""The linter: every rule applied to every object, findings in the order of files and lines. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pilotlight.lint.parts import Document, Part, Path
from pilotlight.lint.rule import Finding, LintContext
from pilotlight.lint.table import RULES
from pilotlight.spec.problems import SourceLocation

if TYPE_CHECKING:
    from pilotlight.spec.nodes import Node


def lint(
    documents: "Sequence[Document | Node | Mapping[str, Any]]", *, model_bytes: Mapping[str, int] | None = None
) -> list[Finding]:
    """Return the findings of objects that are linted together. `model_bytes`: known model sizes by workload name."""
    objects = tuple(part for document in documents for part in _objects(_document(document)))
    context = LintContext(objects, model_bytes or {})
    findings = [finding for part in objects for rule in RULES for finding in rule.findings(part, context)]
    files = {file: index for index, file in enumerate(dict.fromkeys(part.location.file for part in objects))}
    return sorted(findings, key=lambda finding: (files.get(finding.location.file, 0), finding.location[1:]))


def _objects(document: Document) -> Iterator[Part]:
    """Yield the object of a document, or the items of a List, as `kubectl get -o yaml` writes it."""
    root = Part(document, (), document.value)
    if root.get("kind").text().endswith("List") and isinstance(root.get("items").value, list):
        yield from root.get("items").each()
    else:
        yield root


def _document(document: "Document | Node | Mapping[str, Any]") -> Document:
    if isinstance(document, Document):
        return document
    return Document(document) if isinstance(document, Mapping) else from_node(document)


def from_node(node: "Node") -> Document:
    """Convert a node; a field is located at its key: `spec:` is the location of what `spec` lacks."""
    value = node.plain()
    return Document(value if isinstance(value, dict) else {}, dict(_locations(node, ())))


def _locations(node: "Node", path: Path) -> Iterator[tuple[Path, SourceLocation]]:
    yield (
        path,
        node.key_location if node.key_location.line and isinstance(path[-1] if path else 0, str) else node.location,
    )
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _locations(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _locations(child, (*path, index))
