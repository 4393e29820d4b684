"""Manifests in files, whoever made them: read for `diff`, `lint` and --current, written by `render --split`."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from platformctl.documents import existing

if TYPE_CHECKING:
    from pilotlight.manifests import Manifest
    from pilotlight.spec.nodes import Node
    from pilotlight.spec.problems import Problems

SUFFIXES: Final = (".yaml", ".yml", ".json")
# What `file_name` makes: rank, namespace, kind, name.
SPLIT: Final = re.compile(r"\d\d-[a-z0-9.-]+\.(?:yaml|json)")
OURS: Final = ("app.kubernetes.io/managed-by", "pilotlight")


def nodes(files: Sequence[str]) -> "list[Node]":
    """Every object under the files, the items of Lists among them. What cannot be read is raised all at once."""
    from pilotlight.errors import InvalidDocument
    from pilotlight.spec.nodes import parse
    from pilotlight.spec.problems import Problems

    existing(files)
    problems = Problems()
    found = [node for file in _members(files) for node in parse(_text(file, problems), file, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return [item for node in found for item in _items(node)]


def manifests(files: Sequence[str]) -> "list[Manifest]":
    """The same as objects; one without kind or name is refused with its place."""
    from pilotlight.errors import InvalidDocument
    from pilotlight.manifests import Manifest
    from pilotlight.spec.problems import Problems

    problems = Problems()
    found = [Manifest(node.plain()) for node in nodes(files) if _identified(node, problems)]
    if problems.errors:
        raise InvalidDocument(problems.errors)
    return found


def _members(files: Sequence[str]) -> list[str]:
    found: list[str] = []
    for file in files:
        inside = sorted(os.listdir(file)) if os.path.isdir(file) else None
        found += [file] if inside is None else [os.path.join(file, name) for name in inside if name.endswith(SUFFIXES)]
    return found


def _text(file: str, problems: "Problems") -> str:
    from pilotlight.spec.problems import Place

    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        problems.error("PL112", Place(file), "", f"cannot be read: {reason}")
        return ""


def _items(node: "Node") -> "list[Node]":
    items = node.get("items")
    is_list = node.text("kind").endswith("List") and items is not None and isinstance(items.value, list)
    return items.value if is_list else [node]  # type: ignore[union-attr,return-value]


def _identified(node: "Node", problems: "Problems") -> bool:
    metadata = node.get("metadata")
    parts = {
        "apiVersion": node.text("apiVersion"),
        "kind": node.text("kind"),
        "metadata.name": metadata.text("name") if metadata is not None else "",
    }
    missing = [path for path, text in parts.items() if not text]
    if missing:
        problems.error("PL110", node.place, missing[0], "is missing, so this is no object of Kubernetes")
    return not missing


def write(folder: Path, found: "Sequence[Manifest]", as_json: bool) -> tuple[list[str], list[str]]:
    """One file per object. Returns the names written, and those of an earlier rendering that were removed."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {file_name(manifest, as_json): _written(manifest, as_json) for manifest in found}
    stale = [path for path in sorted(folder.iterdir()) if path.name not in texts and _rendered(path)]
    for name, text in texts.items():
        temporary = folder / f".{name}.new"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / name)
    for path in stale:
        path.unlink()
    return list(texts), [path.name for path in stale]


def file_name(manifest: "Manifest", as_json: bool = False) -> str:
    """`12-default-deployment-iris-engine.yaml`: unique to the object, and in the order of applying."""
    from pilotlight.manifests import rank

    words = (f"{rank(manifest):02d}", manifest.namespace, manifest.kind.lower(), manifest.name)
    return f"{'-'.join(filter(None, words))}.{'json' if as_json else 'yaml'}"


def _written(manifest: "Manifest", as_json: bool) -> str:
    import json

    from pilotlight.manifests import to_yaml

    return json.dumps(manifest.document, indent=2, ensure_ascii=False) + "\n" if as_json else to_yaml([manifest])


def _rendered(path: Path) -> bool:
    """Whether an earlier `--split` wrote it: by its name and its label, so that nobody else's file is ever removed."""
    if not SPLIT.fullmatch(path.name) or not path.is_file():
        return False
    from pilotlight.spec.nodes import parse
    from pilotlight.spec.problems import Problems

    found = parse(path.read_text(encoding="utf-8", errors="replace"), path.name, Problems())
    return len(found) == 1 and labels(found[0].plain()).get(OURS[0]) == OURS[1]


def labels(document: Any) -> Mapping[str, Any]:
    for name in ("metadata", "labels"):
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}
