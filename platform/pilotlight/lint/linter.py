"""The linter: every rule applied to every object of the files, findings in the order of files and lines."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from pilotlight.k8s.names import LABEL_SERVICE
from pilotlight.lint.rule import Document, FieldPath, Finding, LintContext, Part
from pilotlight.lint.rules import RULES
from pilotlight.spec.problems import InvalidDocument, Problems, SourceLocation

if TYPE_CHECKING:
    from pilotlight.spec.yaml_nodes import Node

# What planning decides, by what it knows of the cluster, and `explain` reports: said of objects of others only.
DECIDED: Final = frozenset({"PL430", "PL470", "PL472", "PL488"})


def lint(
    documents: "Sequence[Document | Node | Mapping[str, Any]]", *, model_bytes: Mapping[str, int] | None = None
) -> list[Finding]:
    """Return the findings of objects that are linted together. `model_bytes`: known model sizes by workload name."""
    objects = tuple(part for document in documents for part in _objects(document))
    context = LintContext(objects, model_bytes or {})
    findings = [
        finding
        for part in objects
        for rule in RULES
        if not (rule.id in DECIDED and part.get("metadata", "labels", LABEL_SERVICE))
        for finding in rule.findings(part, context)
    ]
    files = {file: index for index, file in enumerate(dict.fromkeys(part.location.file for part in objects))}
    return sorted(findings, key=lambda finding: (files.get(finding.location.file, 0), finding.location[1:]))


def lint_files(
    paths: Sequence[str], *, stdin: TextIO | None = None, model_bytes: Mapping[str, int] | None = None
) -> list[Finding]:
    """Lint files, directories and `-` (standard input) together. Raise InvalidDocument for unreadable ones."""
    from pilotlight.spec.load_documents import read_texts
    from pilotlight.spec.yaml_nodes import parse

    problems = Problems()
    files = [name if name == "-" else str(Path(name)) for name in paths]
    nodes = [node for file, text in read_texts(files, stdin, problems) for node in parse(text, file, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return lint(nodes, model_bytes=model_bytes)


def _objects(document: "Document | Node | Mapping[str, Any]") -> Iterator[Part]:
    """Yield the object of a document, or the items of a List, as `kubectl get -o yaml` writes it."""
    if isinstance(document, Mapping):
        document = Document(document)
    elif not isinstance(document, Document):
        value = document.plain()  # a field is located at its key: `spec:` is the location of what `spec` lacks
        document = Document(value if isinstance(value, dict) else {}, dict(_locations(document, ())))
    root = Part(document, (), document.value)
    if root.get("kind").text().endswith("List") and isinstance(root.get("items").value, list):
        yield from root.get("items").each()
    else:
        yield root


def _locations(node: "Node", path: FieldPath) -> Iterator[tuple[FieldPath, SourceLocation]]:
    is_field = bool(node.key_location.line and path and isinstance(path[-1], str))
    yield path, node.key_location if is_field else node.location
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield from _locations(child, (*path, key))
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            yield from _locations(child, (*path, index))
