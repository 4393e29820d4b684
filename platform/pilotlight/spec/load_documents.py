"""Documents of files, directories and standard input, edited by `--set`, read into services with all their problems.

The only part of `spec` that reads the file system. Catalogue documents (runtimes, models) are returned as nodes.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, TextIO

from pilotlight.spec import annotation_checks, kserve, llm_inference_service, ome
from pilotlight.spec.annotation_checks import check_annotations
from pilotlight.spec.example_request import inline_examples
from pilotlight.spec.field_types import Step, child_path, parse_path
from pilotlight.spec.inference_graph import document as inference_graph
from pilotlight.spec.llm_inference_service import CONFIG, merge_bases
from pilotlight.spec.problems import UNKNOWN_FIELD, Problems, SourceLocation
from pilotlight.spec.service import Service
from pilotlight.spec.yaml_nodes import Node, parse
from pilotlight.wire.messages import suggestion
from pilotlight.wire.model_formats import detect_file

SUFFIXES: Final = (".yaml", ".yml", ".json")
_LLM, _GRAPH = llm_inference_service.KIND, inference_graph.KIND
_READERS: Final = {
    ("InferenceService", ome.GROUP): ome.read_service,
    ("InferenceService", kserve.GROUP): kserve.read_service,
    **dict.fromkeys(
        ((_LLM, version) for version in llm_inference_service.VERSIONS), llm_inference_service.read_service
    ),
    (_GRAPH, inference_graph.VERSION): inference_graph.read_service,
}
_CATALOGUE_KINDS: Final = (
    "AcceleratorClass", "BaseModel", "ClusterBaseModel", "ClusterServingRuntime", "FineTunedWeight", "ServingRuntime",
    "LocalModelCache", "LocalModelNamespaceCache",
)  # fmt: skip
_GROUPS: Final = ("ome.io/", "serving.kserve.io/")
KNOWN_KINDS: Final = ("InferenceService", _LLM, _GRAPH, *_CATALOGUE_KINDS)
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
    unreadable: frozenset[tuple[str, str]] = frozenset()  # services with other errors than unknown fields


def load(
    files: Sequence[str],
    *,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    stdin: TextIO | None = None,
    namespace: str = "default",
    objects: Sequence[Node] = (),
) -> LoadedDocuments:
    """Read all documents of `files` (`-` is standard input). `sets` edit each service, `environ` fills in `${VAR}`.

    `namespace` is the default for documents without one. `objects` are documents of a cluster: their authors may not
    read files of this machine.
    """
    problems = Problems()
    services: list[Service] = []
    catalogue_nodes: list[Node] = []
    companions: list[Node] = []
    unreadable = set[tuple[str, str]]()
    for node in _with_bases([*_documents(files, environ, stdin, problems), *objects], problems):
        kind, version = node.text("kind"), node.text("apiVersion")
        if kind in _CATALOGUE_KINDS and version.startswith(_GROUPS):
            check_annotations(node, problems)
            catalogue_nodes.append(node)
        elif version == COMPANION_KINDS.get(kind):
            metadata = node.get("metadata")
            if metadata is not None and metadata.text("name"):
                companions.append(node)
            else:
                problems.error("PL103", (metadata or node).location, "metadata.name", "is required")
        elif (kind, version) in _READERS:
            errors = len(problems.errors)
            if any(each.lstrip().startswith(annotation_checks.PATH) for each in sets):
                annotation_checks.move_to_spec(node)
            apply_sets(node, sets, problems)
            annotation_checks.move_to_annotation(node, problems)
            check_annotations(node, problems)
            inline_examples(node, problems, _no_file if objects else lambda path: Path(path).read_text("utf-8"))
            services.append(_READERS[kind, version](node, problems, namespace))
            if any(problem.code != UNKNOWN_FIELD for problem in problems.errors[errors:]):
                unreadable.add((services[-1].namespace, services[-1].name))
        else:
            _reject_kind(node, kind, version, problems)
    _reject_duplicates(services, problems)
    return LoadedDocuments(tuple(services), tuple(catalogue_nodes), problems, tuple(companions), frozenset(unreadable))


def _no_file(path: str) -> str:
    raise ValueError("an object of a cluster has no files next to it; write the request's JSON here")


def _with_bases(nodes: Sequence[Node], problems: Problems) -> Iterator[Node]:
    """Yield the documents, each LLMInferenceService merged with its LLMInferenceServiceConfigs in place of these."""
    configs = [node for node in nodes if node.text("kind") == CONFIG and (_LLM, node.text("apiVersion")) in _READERS]
    named = {metadata.text("name"): node for node in configs if (metadata := node.get("metadata")) is not None}
    for node in nodes:
        if node.text("kind") == _LLM:
            merge_bases(node, named, problems)
        if not any(node is config for config in configs):
            yield node


def _documents(
    files: Sequence[str], environ: Mapping[str, str] | None, stdin: TextIO | None, problems: Problems
) -> Iterator[Node]:
    for name, text in read_texts(files, stdin, problems):
        has_documents = False
        for node in parse(text, name, problems, environ):
            has_documents = True
            yield from members(node)
        if not has_documents and not any(problem.location.file == name for problem in problems.errors):
            problems.error("PL112", SourceLocation(name), "", "has no manifest")


def members(node: Node) -> Sequence[Node]:
    """Return the objects of a List, as `kubectl get -o yaml` writes it; another object itself."""
    items = node.get("items")
    is_list = node.text("kind").endswith("List") and items is not None and isinstance(items.value, list)
    return items.value if is_list else [node]  # type: ignore[union-attr,return-value]


def read_texts(files: Sequence[str], stdin: TextIO | None, problems: Problems) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file; of a directory, its YAML and JSON files in order of name.

    Standard input has the name of its stream, as text from elsewhere has that of its origin.
    """
    for name in files:
        if name == "-":
            yield getattr(stdin, "name", "<stdin>"), stdin.read() if stdin is not None else ""
            continue
        members = [name]
        if os.path.isdir(name):
            members = [os.path.join(name, each) for each in sorted(os.listdir(name)) if each.endswith(SUFFIXES)]
        if not members:
            problems.error("PL112", SourceLocation(name), "", f"is a directory without {', '.join(SUFFIXES)} files")
        for member in members:
            try:
                yield member, Path(member).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                if isinstance(error, UnicodeDecodeError):
                    model = f"it is a model, not a document: platformctl deploy {shlex.quote(member)}"
                    reason = model if detect_file(Path(member)) else "it is not UTF-8 text"
                problems.error("PL112", SourceLocation(member), "", f"cannot be read: {reason}")


def _reject_kind(node: Node, kind: str, version: str, problems: Problems) -> None:
    """Report a document of an unknown kind, with the known kinds and a suggestion."""
    versions = ", ".join(dict.fromkeys(version for _, version in _READERS))
    services = f"InferenceService, {_LLM} and {_GRAPH} ({versions})"
    understood = f"supported: {services}, and {', '.join(_CATALOGUE_KINDS)}"
    if not kind or not version:
        missing = child_path("", "kind" if not kind else "apiVersion")
        problems.error("PL110", node.location, missing, f"is missing, so this is not a manifest; {understood}")
        return
    read_as = [COMPANION_KINDS[kind]] if kind in COMPANION_KINDS else [each for name, each in _READERS if name == kind]
    if read_as:
        location = (node.get("apiVersion") or node).location
        message = f'is "{version}", must be {" or ".join(read_as)} for kind {kind}'
        problems.error("PL110", location, "apiVersion", message)
        return
    path, hint = ("apiVersion", "") if kind in KNOWN_KINDS else ("kind", suggestion(kind, KNOWN_KINDS))
    message = f"{version} {kind} is not supported{hint or f'; {understood}'}"
    problems.error("PL110", (node.get(path) or node).location, path, message)


def _reject_duplicates(services: Sequence[Service], problems: Problems) -> None:
    first: dict[tuple[str, str], Service] = {}
    for service in services:
        key = (service.namespace, service.name)
        if service.name and key in first:
            where = first[key].location("metadata.name")
            message = f'is "{service.name}", the same as the service at {where}; give each its own name or namespace'
            problems.error("PL113", service.location("metadata.name"), "metadata.name", message)
        first.setdefault(key, service)


class _PathError(Exception):
    """A path of `--set` does not fit the document."""


def apply_sets(node: Node, sets: Sequence[str], problems: Problems) -> None:
    """Apply the edits in order, in place. `null` removes a field; missing parent maps and lists are created."""
    for edit in sets:
        path, equals, value = edit.partition("=")
        location = SourceLocation(f"--set {edit}")
        steps = parse_path(path.strip())
        if not equals or steps is None:
            problems.error("PL108", location, "", "must read path=value, such as spec.engine.minReplicas=0")
            continue
        try:
            # A value that is no YAML is text: `--set x=@handle` needs no quotes.
            nodes = parse(value, location.file, silent := Problems())
            is_text = silent.errors or len(nodes) > 1
            parsed = Node(location, value) if is_text else nodes[0] if nodes else Node(location, None)
            _relocate(parsed, location)
            _set(node, steps, parsed)
        except _PathError as error:
            problems.error("PL108", location, path, str(error))


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
        raise _PathError(f"{step} cannot be set: its parent is not a map")
    return node.value


def _items(node: Node, step: int) -> list[Node]:
    if not isinstance(node.value, list):
        raise _PathError(f"[{step}] cannot be set: its parent is not a list")
    if step > len(node.value):
        length = len(node.value)
        raise _PathError(f"[{step}] cannot be set: the list has {length} items; the next is [{length}]")
    return node.value
