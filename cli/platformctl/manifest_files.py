"""Manifest files: read for `diff`, `lint` and --current, written by `render --split`."""

import os
import re
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import UsageError
from platformctl import output

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import Manifest
    from pilotlight.spec.problems import Problems
    from pilotlight.spec.yaml_nodes import Node

SUFFIXES: Final = (".yaml", ".yml", ".json")
# File names of `file_name`: rank, namespace, kind, name.
SPLIT: Final = re.compile(r"\d\d-[a-z0-9.-]+\.(?:yaml|json)")
OURS: Final = ("app.kubernetes.io/managed-by", "pilotlight")


def check_exist(files: Sequence[str]) -> None:
    """Raise UsageError with every missing file or directory. `-` is standard input."""
    missing = [name for name in files if name != "-" and not Path(name).exists()]
    if missing:
        raise no_such_file(*missing)


def no_such_file(*names: str) -> UsageError:
    """Return the error for missing files; for a single one it suggests a similar name of the same folder."""
    from pilotlight.wire.messages import suggestion

    folder, name = os.path.split(names[0].rstrip("/"))
    there = glob("*", root_dir=folder or None) if len(names) == 1 else []
    near = suggestion(name, tuple(there)).replace("mean ", f"mean {os.path.join(folder, '')}", 1)
    return UsageError(f"no such file or directory: {', '.join(names)}{near}")


def nodes(files: Sequence[str]) -> "list[Node]":
    """Return every object in the files, with Lists expanded. Raises InvalidDocument with all read errors."""
    from pilotlight.spec.load_documents import members, read_texts
    from pilotlight.spec.problems import InvalidDocument, Problems
    from pilotlight.spec.yaml_nodes import parse

    check_exist(files)
    problems = Problems()
    texts = read_texts(files, output.stdin(), problems)
    documents = [node for file, text in texts for node in parse(text, file, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return [item for node in documents for item in members(node)]


def manifests(files: Sequence[str]) -> "list[Manifest]":
    """Return the objects as manifests. Raises InvalidDocument if one lacks apiVersion, kind or name."""
    from pilotlight.k8s.manifest import Manifest
    from pilotlight.spec.problems import InvalidDocument, Problems

    problems = Problems()
    objects = [Manifest(node.plain()) for node in nodes(files) if _check_identity(node, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return objects


def _check_identity(node: "Node", problems: "Problems") -> bool:
    metadata = node.get("metadata")
    parts = {
        "apiVersion": node.text("apiVersion"),
        "kind": node.text("kind"),
        "metadata.name": metadata.text("name") if metadata is not None else "",
    }
    missing = [path for path, text in parts.items() if not text]
    if missing:
        problems.error("PL110", node.location, missing[0], "is missing, so this is no object of Kubernetes")
    return not missing


def write(folder: Path, manifests: "Sequence[Manifest]", as_json: bool) -> tuple[list[str], list[str]]:
    """Write one file per object. Returns the names written, and those of stale files that were removed."""
    import json

    from pilotlight.k8s.manifest import to_yaml

    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        file_name(each, as_json): json.dumps(each.document, indent=2, ensure_ascii=False) + "\n"
        if as_json
        else to_yaml([each])
        for each in manifests
    }
    stale = [path for path in sorted(folder.iterdir()) if path.name not in texts and _is_rendered(path)]
    for name, text in texts.items():
        temporary = folder / f".{name}.new"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)
    for path in stale:
        path.unlink()
    return list(texts), [path.name for path in stale]


def file_name(manifest: "Manifest", as_json: bool = False) -> str:
    """`12-default-deployment-iris-engine.yaml`: unique to the object, sorted in apply order."""
    from pilotlight.k8s.manifest import apply_rank

    words = (f"{apply_rank(manifest):02d}", manifest.namespace, manifest.kind.lower(), manifest.name)
    return f"{'-'.join(filter(None, words))}.{'json' if as_json else 'yaml'}"


def _is_rendered(path: Path) -> bool:
    """Whether `--split` wrote the file, by name and label: other files are never removed."""
    if not SPLIT.fullmatch(path.name) or not path.is_file():
        return False
    from pilotlight.spec.problems import Problems
    from pilotlight.spec.yaml_nodes import parse

    documents = parse(path.read_text(encoding="utf-8", errors="replace"), path.name, Problems())
    return len(documents) == 1 and labels(documents[0].plain()).get(OURS[0]) == OURS[1]


def labels(document: Any) -> Mapping[str, Any]:
    for name in ("metadata", "labels"):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}
