"""Files → findings.

The linter: every rule applied to every object, findings in the order of files and lines. Pure.

Linting of files: the only part of the linter that reads the file system.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as PathlibPath
from typing import TYPE_CHECKING, Any, Final, TextIO

from pilotlight.lint.rule import Document, Finding, LintContext, Part, Path
from pilotlight.lint.rules import RULES
from pilotlight.spec.problems import InvalidDocument, Problems, SourceLocation

if TYPE_CHECKING:
    from pilotlight.spec.yaml_nodes import Node


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


SUFFIXES: Final = (".yaml", ".yml", ".json")


def lint_files(
    paths: Sequence[str], *, stdin: TextIO | None = None, model_bytes: Mapping[str, int] | None = None
) -> list[Finding]:
    """Lint files, directories and `-` (standard input) together. Raise InvalidDocument for unreadable ones."""
    from pilotlight.spec.yaml_nodes import parse

    problems = Problems()
    nodes = [node for file, text in _texts(paths, stdin, problems) for node in parse(text, file, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return lint(nodes, model_bytes=model_bytes)


def _texts(paths: Sequence[str], stdin: TextIO | None, problems: Problems) -> Iterator[tuple[str, str]]:
    for name in paths:
        if name == "-":
            yield "<stdin>", stdin.read() if stdin is not None else ""
            continue
        folder = PathlibPath(name)
        files = (
            [folder] if not folder.is_dir() else sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
        )
        if not files:
            problems.error("PL112", SourceLocation(name), "", f"is a directory without {', '.join(SUFFIXES)} files")
        for path in files:
            try:
                yield str(path), path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                problems.error("PL112", SourceLocation(str(path)), "", f"cannot be read: {reason}")
