"""Kubernetes objects between render and target: identity, apply order, YAML, diff."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from itertools import zip_longest
from typing import Any, Final, Literal

ObjectKey = tuple[str, str, str, str]
ChangeKind = Literal["added", "removed", "changed"]

# Later kinds depend on earlier ones; deletion uses the reverse order.
APPLY_ORDER: Final = (
    "Namespace", "CustomResourceDefinition", "ServiceAccount", "Secret", "ConfigMap", "PersistentVolumeClaim", "Role",
    "RoleBinding", "NetworkPolicy", "ControllerRevision", "TriggerAuthentication", "Service", "Deployment",
    "StatefulSet", "LeaderWorkerSet", "RayCluster", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject",
    "InterceptorRoute", "ReferenceGrant", "InferencePool", "HTTPRoute", "ServiceMonitor", "PodMonitor",
    "PrometheusRule",
)  # fmt: skip

# Fields that the API server or a tool sets; they are never applied.
SERVER_METADATA: Final = frozenset({
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields",
    "resourceVersion", "selfLink", "uid",
})  # fmt: skip
SERVER_ANNOTATIONS: Final = frozenset({
    "deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration",
    "serving.knative.dev/creator", "serving.knative.dev/lastModifier",
})  # fmt: skip

# Strings that PyYAML leaves unquoted but some YAML readers take for a number or bool: 1e5, 0o7, 1_000, y.
_AMBIGUOUS: Final = re.compile(r"[-+]?\.?\d|[yYnN]$")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object as it is applied."""

    document: Mapping[str, Any]

    @property
    def api_version(self) -> str:
        return str(self.document["apiVersion"])

    @property
    def kind(self) -> str:
        return str(self.document["kind"])

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.document["metadata"].get("namespace", ""))

    @property
    def key(self) -> ObjectKey:
        """Identity: group without version, kind, namespace, name."""
        return (self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name)


def in_apply_order(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Sort manifests by apply order, namespace and name."""
    return sorted(manifests, key=lambda manifest: (apply_rank(manifest), manifest.namespace, manifest.name))


def apply_rank(manifest: Manifest) -> int:
    """Return the position in APPLY_ORDER. A Knative Service is a workload, although its kind is Service."""
    knative = manifest.api_version.startswith("serving.knative.dev/") and manifest.kind == "Service"
    kind = "Deployment" if knative else manifest.kind
    return APPLY_ORDER.index(kind) if kind in APPLY_ORDER else len(APPLY_ORDER)


def route_traffic(shares: Iterable[Mapping[str, Any]], configuration: str) -> list[dict[str, Any]]:
    """Return the split of a Knative Service for a Route to the same revisions, without tags."""
    return [
        {
            **({"configurationName": configuration} if share.get("latestRevision") else {}),
            **{name: value for name, value in share.items() if name != "tag"},
        }
        for share in shares
        if share.get("percent")
    ]


def to_yaml(manifests: Sequence[Manifest]) -> str:
    """Return a multi-document stream; keys keep their order."""
    return _dump([manifest.document for manifest in manifests], explicit_start=True)


def canonical_json(document: Any) -> str:
    """Return canonical JSON, for hashes and comparisons."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one object: `lines` are a unified diff of its YAML, without line ends."""

    kind: ChangeKind
    key: ObjectKey
    lines: tuple[str, ...]


def diff(old: Iterable[Manifest], new: Iterable[Manifest]) -> list[Change]:
    """Return the changes in apply order, ignoring fields that the server sets."""
    before = {manifest.key: manifest for manifest in old}
    after = {manifest.key: manifest for manifest in new}
    manifests = in_apply_order({**before, **after}.values())
    changes = (_change(before.get(manifest.key), after.get(manifest.key)) for manifest in manifests)
    return [change for change in changes if change is not None]


def without_server_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without status and server-set metadata."""
    metadata = {key: value for key, value in document.get("metadata", {}).items() if key not in SERVER_METADATA}
    written = metadata.pop("annotations", None) or {}
    annotations = {key: value for key, value in written.items() if key not in SERVER_ANNOTATIONS}
    if annotations:
        metadata["annotations"] = annotations
    fields = {key: value for key, value in document.items() if key != "status"}
    return {**fields, "metadata": metadata}


def _change(old: Manifest | None, new: Manifest | None) -> Change | None:
    kind: ChangeKind = "added" if old is None else "removed" if new is None else "changed"
    manifest = new or old
    assert manifest is not None
    after = without_server_fields(new.document) if new else {}
    before = _ordered_like(after, without_server_fields(old.document)) if old else {}
    if canonical_json(before) == canonical_json(after):
        return None
    label = "/".join(filter(None, (manifest.namespace, manifest.kind, manifest.name)))
    old_lines, new_lines = (_dump([document]).splitlines() if document else [] for document in (before, after))
    lines = unified_diff(old_lines, new_lines, f"old {label}", f"new {label}", lineterm="")
    return Change(kind, manifest.key, tuple(lines))


def _ordered_like(model: Any, value: Any) -> Any:
    """Return the value with its keys in the model's order, so that the diff shows no reordering."""
    if isinstance(model, Mapping) and isinstance(value, Mapping):
        keys = [*(key for key in model if key in value), *(key for key in value if key not in model)]
        return {key: _ordered_like(model.get(key), value[key]) for key in keys}
    if isinstance(model, list) and isinstance(value, list):
        return [_ordered_like(like, item) for like, item in zip_longest(model[: len(value)], value)]
    return value


def _dump(documents: Sequence[Mapping[str, Any]], *, explicit_start: bool = False) -> str:
    import yaml

    text = yaml.dump_all(
        documents, Dumper=_dumper(), sort_keys=False, default_flow_style=False, allow_unicode=True, width=120,
        explicit_start=explicit_start,
    )  # fmt: skip
    assert isinstance(text, str)
    return text


@cache
def _dumper() -> Any:
    """Return a dumper without anchors, with block style for multi-line text and quotes for ambiguous strings."""
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else "'" if _AMBIGUOUS.match(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper
