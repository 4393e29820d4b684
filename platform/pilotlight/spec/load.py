"""The entrance of reading: files, directories and standard input into services, with every problem found on the way.

The only part of `spec` that touches the file system. Documents of the catalogue (runtimes, models) pass on unread.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from pilotlight.errors import InvalidDocument
from pilotlight.spec import canary_block, kserve, kserve_fields, ome, ome_fields
from pilotlight.spec.edits import apply
from pilotlight.spec.model import Service
from pilotlight.spec.nodes import Node, parse
from pilotlight.spec.own_annotations import check_annotations
from pilotlight.spec.paths import under
from pilotlight.spec.problems import Place, Problems
from pilotlight.spec.types import suggestion

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_READERS: Final = {ome_fields.GROUP: ome.read_service, kserve_fields.GROUP: kserve.read_service}
_CATALOGUE_KINDS: Final = (
    "AcceleratorClass", "BaseModel", "ClusterBaseModel", "ClusterServingRuntime", "FineTunedWeight", "ServingRuntime",
)  # fmt: skip
_GROUPS: Final = ("ome.io/", "serving.kserve.io/")
UNDERSTOOD: Final = ("InferenceService", *_CATALOGUE_KINDS)
# What people keep beside a service because it cannot run without: passed on as it is. Anything else is a slip.
COMPANION_KINDS: Final = {
    "Namespace": "v1", "Secret": "v1", "ConfigMap": "v1", "ServiceAccount": "v1", "PersistentVolumeClaim": "v1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loaded:
    """`others` are documents of the catalogue, `companions` objects to be applied as they are; both in their order."""

    services: tuple[Service, ...]
    others: tuple[Node, ...]
    problems: Problems
    companions: tuple[Node, ...] = ()


def load(
    files: Sequence[str],
    *,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    stdin: TextIO | None = None,
    namespace: str = "default",
) -> Loaded:
    """Read everything under `files` (`-` is standard input). `sets` change each service, `environ` fills in `${VAR}`.

    `namespace` is for documents that name none.
    """
    problems = Problems()
    services: list[Service] = []
    others: list[Node] = []
    companions: list[Node] = []
    for node in _documents(files, environ, stdin, problems):
        kind, version = node.text("kind"), node.text("apiVersion")
        if kind in _CATALOGUE_KINDS and version.startswith(_GROUPS):
            check_annotations(node, problems)
            others.append(node)
        elif version == COMPANION_KINDS.get(kind):
            companions += _named(node, problems)
        elif kind == "InferenceService" and version in _READERS:
            if any(each.lstrip().startswith(canary_block.PATH) for each in sets):
                canary_block.unfold(node)
            apply(node, tuple(sets), problems)
            canary_block.fold(node, problems)
            check_annotations(node, problems)
            services.append(_READERS[version](node, problems, namespace))
        else:
            _refuse(node, kind, version, problems)
    _refuse_twins(services, problems)
    return Loaded(tuple(services), tuple(others), problems, tuple(companions))


def services_or_raise(loaded: Loaded) -> tuple[Service, ...]:
    """The services, if nothing is wrong with any document."""
    if loaded.problems.errors:
        raise InvalidDocument(loaded.problems.errors)
    return loaded.services


def _documents(
    files: Sequence[str], environ: Mapping[str, str] | None, stdin: TextIO | None, problems: Problems
) -> Iterator[Node]:
    for name, text in _texts(files, stdin, problems):
        found = False
        for node in parse(text, name, problems, environ):
            found = True
            yield from _items(node)
        if not found and not any(problem.place.file == name for problem in problems.errors):
            problems.error("PL112", Place(name), "", "holds no document")


def _items(node: Node) -> Iterator[Node]:
    """`kubectl get -o yaml` wraps what it found in a List."""
    items = node.get("items")
    if node.text("kind").endswith("List") and items is not None and isinstance(items.value, list):
        yield from items.value
    else:
        yield node


def _texts(files: Sequence[str], stdin: TextIO | None, problems: Problems) -> Iterator[tuple[str, str]]:
    """Name and content of each file; directories give their YAML and JSON files in order of name."""
    for name in files:
        if name == "-":
            yield "<stdin>", stdin.read() if stdin is not None else ""
            continue
        members = _members(name)
        if not members:
            problems.error("PL112", Place(name), "", f"is a directory without {', '.join(_SUFFIXES)} files")
        for member in members:
            try:
                yield member, Path(member).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                problems.error("PL112", Place(member), "", f"cannot be read: {_reason(error)}")


def _members(name: str) -> list[str]:
    if not os.path.isdir(name):
        return [name]
    return [os.path.join(name, each) for each in sorted(os.listdir(name)) if each.endswith(_SUFFIXES)]


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _named(node: Node, problems: Problems) -> list[Node]:
    metadata = node.get("metadata")
    if metadata is not None and metadata.text("name"):
        return [node]
    problems.error("PL103", (metadata or node).place, "metadata.name", "is missing and required")
    return []


def _refuse(node: Node, kind: str, version: str, problems: Problems) -> None:
    """Neither a service nor of the catalogue: say what is understood, and what was probably meant."""
    named = node.get("kind" if kind not in UNDERSTOOD else "apiVersion") or node
    understood = f"understood are InferenceService ({', '.join(_READERS)}) and {', '.join(_CATALOGUE_KINDS)}"
    if not kind or not version:
        missing = under("", "kind" if not kind else "apiVersion")
        problems.error("PL110", node.place, missing, f"is missing, so this is no document of ours; {understood}")
        return
    if kind in COMPANION_KINDS:
        place, message = (node.get("apiVersion") or node).place, f'is "{version}", must be {COMPANION_KINDS[kind]}'
        problems.error("PL110", place, "apiVersion", f"{message} for a {kind}")
        return
    hint = suggestion(kind, UNDERSTOOD) if kind not in UNDERSTOOD else ""
    path = "kind" if kind not in UNDERSTOOD else "apiVersion"
    problems.error("PL110", named.place, path, f"{version} {kind} is not read here{hint or f'; {understood}'}")


def _refuse_twins(services: Sequence[Service], problems: Problems) -> None:
    first: dict[tuple[str, str], Service] = {}
    for service in services:
        key = (service.namespace, service.name)
        if service.name and key in first:
            where = first[key].place("metadata.name")
            message = f'is "{service.name}", as the service at {where} is; give each its own name or namespace'
            problems.error("PL113", service.place("metadata.name"), "metadata.name", message)
        first.setdefault(key, service)
