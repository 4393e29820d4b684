"""Loading of documents: files, directories and standard input into services, with all their problems.

The only part of `spec` that reads the file system. Catalogue documents (runtimes, models) are returned as nodes.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from pilotlight.spec import canary_block, kserve, kserve_fields, ome, ome_fields
from pilotlight.spec.edits import apply
from pilotlight.spec.model import Service
from pilotlight.spec.nodes import Node, parse
from pilotlight.spec.own_annotations import check_annotations
from pilotlight.spec.paths import child_path
from pilotlight.spec.problems import Problems, SourceLocation
from pilotlight.spec.types import suggestion

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_READERS: Final = {ome_fields.GROUP: ome.read_service, kserve_fields.GROUP: kserve.read_service}
_CATALOGUE_KINDS: Final = (
    "AcceleratorClass", "BaseModel", "ClusterBaseModel", "ClusterServingRuntime", "FineTunedWeight", "ServingRuntime",
)  # fmt: skip
_GROUPS: Final = ("ome.io/", "serving.kserve.io/")
KNOWN_KINDS: Final = ("InferenceService", *_CATALOGUE_KINDS)
# Objects that a service depends on and that may share its file: passed on unchanged. Other kinds are errors.
COMPANION_KINDS: Final = {
    "Namespace": "v1", "Secret": "v1", "ConfigMap": "v1", "ServiceAccount": "v1", "PersistentVolumeClaim": "v1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadedDocuments:
    """Services, catalogue documents, and companion objects to be applied unchanged, each in document order."""

    services: tuple[Service, ...]
    catalogue_nodes: tuple[Node, ...]
    problems: Problems
    companions: tuple[Node, ...] = ()


def load(
    files: Sequence[str],
    *,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    stdin: TextIO | None = None,
    namespace: str = "default",
) -> LoadedDocuments:
    """Read all documents of `files` (`-` is standard input). `sets` edit each service, `environ` fills in `${VAR}`.

    `namespace` is the default for documents without one.
    """
    problems = Problems()
    services: list[Service] = []
    catalogue_nodes: list[Node] = []
    companions: list[Node] = []
    for node in _documents(files, environ, stdin, problems):
        kind, version = node.text("kind"), node.text("apiVersion")
        if kind in _CATALOGUE_KINDS and version.startswith(_GROUPS):
            check_annotations(node, problems)
            catalogue_nodes.append(node)
        elif version == COMPANION_KINDS.get(kind):
            companions += _companion(node, problems)
        elif kind == "InferenceService" and version in _READERS:
            if any(each.lstrip().startswith(canary_block.PATH) for each in sets):
                canary_block.move_to_spec(node)
            apply(node, tuple(sets), problems)
            canary_block.move_to_annotation(node, problems)
            check_annotations(node, problems)
            services.append(_READERS[version](node, problems, namespace))
        else:
            _reject_kind(node, kind, version, problems)
    _reject_duplicates(services, problems)
    return LoadedDocuments(tuple(services), tuple(catalogue_nodes), problems, tuple(companions))


def _documents(
    files: Sequence[str], environ: Mapping[str, str] | None, stdin: TextIO | None, problems: Problems
) -> Iterator[Node]:
    for name, text in _texts(files, stdin, problems):
        has_documents = False
        for node in parse(text, name, problems, environ):
            has_documents = True
            yield from _items(node)
        if not has_documents and not any(problem.location.file == name for problem in problems.errors):
            problems.error("PL112", SourceLocation(name), "", "holds no document")


def _items(node: Node) -> Iterator[Node]:
    """Yield the items of a List, as `kubectl get -o yaml` writes it, else the document itself."""
    items = node.get("items")
    if node.text("kind").endswith("List") and items is not None and isinstance(items.value, list):
        yield from items.value
    else:
        yield node


def _texts(files: Sequence[str], stdin: TextIO | None, problems: Problems) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file; of a directory, its YAML and JSON files in order of name."""
    for name in files:
        if name == "-":
            yield "<stdin>", stdin.read() if stdin is not None else ""
            continue
        members = _members(name)
        if not members:
            problems.error("PL112", SourceLocation(name), "", f"is a directory without {', '.join(_SUFFIXES)} files")
        for member in members:
            try:
                yield member, Path(member).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                problems.error("PL112", SourceLocation(member), "", f"cannot be read: {_reason(error)}")


def _members(name: str) -> list[str]:
    if not os.path.isdir(name):
        return [name]
    return [os.path.join(name, each) for each in sorted(os.listdir(name)) if each.endswith(_SUFFIXES)]


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _companion(node: Node, problems: Problems) -> list[Node]:
    metadata = node.get("metadata")
    if metadata is not None and metadata.text("name"):
        return [node]
    problems.error("PL103", (metadata or node).location, "metadata.name", "is missing and required")
    return []


def _reject_kind(node: Node, kind: str, version: str, problems: Problems) -> None:
    """Report a document of an unknown kind, with the known kinds and a suggestion."""
    named = node.get("kind" if kind not in KNOWN_KINDS else "apiVersion") or node
    understood = f"understood are InferenceService ({', '.join(_READERS)}) and {', '.join(_CATALOGUE_KINDS)}"
    if not kind or not version:
        missing = child_path("", "kind" if not kind else "apiVersion")
        problems.error("PL110", node.location, missing, f"is missing, so this is no document of ours; {understood}")
        return
    if kind in COMPANION_KINDS:
        location = (node.get("apiVersion") or node).location
        message = f'is "{version}", must be {COMPANION_KINDS[kind]} for a {kind}'
        problems.error("PL110", location, "apiVersion", message)
        return
    hint = suggestion(kind, KNOWN_KINDS) if kind not in KNOWN_KINDS else ""
    path = "kind" if kind not in KNOWN_KINDS else "apiVersion"
    problems.error("PL110", named.location, path, f"{version} {kind} is not read here{hint or f'; {understood}'}")


def _reject_duplicates(services: Sequence[Service], problems: Problems) -> None:
    first: dict[tuple[str, str], Service] = {}
    for service in services:
        key = (service.namespace, service.name)
        if service.name and key in first:
            where = first[key].location("metadata.name")
            message = f'is "{service.name}", as the service at {where} is; give each its own name or namespace'
            problems.error("PL113", service.location("metadata.name"), "metadata.name", message)
        first.setdefault(key, service)
