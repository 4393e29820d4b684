"""CustomResourceDefinitions for kinds whose project publishes no Go module with them: made of our own schemas.

They let an API server accept or refuse such an object; nothing acts on one.
"""

import json
from pathlib import Path
from typing import Any, Final

from tests.cluster.bed.places import ROOT

Json = Any
FOLDER: Final = ROOT / "tests" / "judges" / "own"
# What a structural schema of Kubernetes may not hold.
FORBIDDEN: Final = frozenset({"title", "uniqueItems", "definitions", "x-kubernetes-list-map-keys"})
ANY: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def own_definitions() -> list[dict[str, Json]]:
    return [definition(json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json"))]


def definition(schema: dict[str, Json]) -> dict[str, Json]:
    """The title is the kind's full name: "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet"."""
    api_version, kind = schema["title"].split()
    group, version = api_version.split("/")
    plural = f"{kind.lower()}s"
    shape = structural(schema)
    shape["properties"] |= {"metadata": {"type": "object"}, "status": dict(ANY)}
    served = {
        "name": version, "served": True, "storage": True, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": shape},
    }  # fmt: skip
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [served]}
    # The groups of *.k8s.io are guarded by a note of approval.
    notes = {"annotations": {"api-approved.kubernetes.io": "unapproved, a test's own"}} if "k8s.io" in group else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", **notes}, "spec": spec,
    }  # fmt: skip


def structural(node: Json) -> Json:
    """References become open objects, enumerations and bounds get the type that Kubernetes demands beside them."""
    if isinstance(node, list):
        return [structural(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return dict(ANY)
    found = {key: structural(value) for key, value in node.items() if key not in FORBIDDEN}
    if "enum" in found and "type" not in found:
        found["type"] = "string"
    if found.get("type") == "object" and not {"properties", "additionalProperties"} & found.keys():
        found["x-kubernetes-preserve-unknown-fields"] = True
    return found


def write_own_definitions(path: Path) -> None:
    path.write_text("---\n".join(json.dumps(each, indent=1) + "\n" for each in own_definitions()))
