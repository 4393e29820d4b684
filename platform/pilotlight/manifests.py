"""Kubernetes objects between render and target: their identity, the order in which they are applied, YAML, diff."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from itertools import zip_longest
from typing import Any, Final, Literal

Key = tuple[str, str, str, str]

# Earlier kinds are needed by later ones; deleting goes the other way.
APPLY_ORDER: Final = (
    "Namespace", "CustomResourceDefinition", "ServiceAccount", "Secret", "ConfigMap", "PersistentVolumeClaim", "Role",
    "RoleBinding", "NetworkPolicy", "ControllerRevision", "TriggerAuthentication", "Service", "Deployment",
    "StatefulSet", "LeaderWorkerSet", "RayCluster", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject",
    "InterceptorRoute", "ReferenceGrant", "HTTPRoute", "ServiceMonitor", "PodMonitor", "PrometheusRule",
)  # fmt: skip

# What a server or another tool writes into an object, and nobody applies.
SERVER_METADATA: Final = frozenset({
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields",
    "resourceVersion", "selfLink", "uid",
})  # fmt: skip
SERVER_ANNOTATIONS: Final = frozenset({
    "deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration",
    "serving.knative.dev/creator", "serving.knative.dev/lastModifier",
})  # fmt: skip

# Strings that some YAML reader takes for a number or a bool, though PyYAML writes them bare: 1e5, 0o7, 1_000, y.
_AMBIGUOUS: Final = re.compile(r"[-+]?\.?\d|[yYnN]$")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, as it would be applied."""

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
    def key(self) -> Key:
        """Identity: group without version, kind, namespace, name."""
        return (self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name)


def in_order(manifests: Iterable[Manifest]) -> list[Manifest]:
    """As they are applied."""
    return sorted(manifests, key=lambda manifest: (rank(manifest), manifest.namespace, manifest.name))


def rank(manifest: Manifest) -> int:
    """Its place in the order. A Knative Service is applied with the workloads, though it shares its kind's name."""
    kind = "Deployment" if manifest.api_version.startswith("serving.knative.dev/") else manifest.kind
    return APPLY_ORDER.index(kind) if kind in APPLY_ORDER else len(APPLY_ORDER)


def to_yaml(manifests: Sequence[Manifest]) -> str:
    """A multi-document stream, keys in the order in which they were rendered."""
    return _dump([manifest.document for manifest in manifests], explicit_start=True)


def canonical(document: Any) -> str:
    """One text per meaning: what hashes and comparisons are made of."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


ChangeKind = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one object: `lines` are a unified diff of its YAML, without line ends."""

    kind: ChangeKind
    key: Key
    lines: tuple[str, ...]


def diff(old: Iterable[Manifest], new: Iterable[Manifest]) -> list[Change]:
    """Object by object, in the order of applying; empty when nothing that a person wrote differs."""
    before = {manifest.key: manifest for manifest in old}
    after = {manifest.key: manifest for manifest in new}
    either = in_order({**before, **after}.values())
    found = (_change(before.get(manifest.key), after.get(manifest.key)) for manifest in either)
    return [change for change in found if change is not None]


def without_noise(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as it was applied: without status and without what only a server writes into metadata."""
    metadata = {key: value for key, value in document.get("metadata", {}).items() if key not in SERVER_METADATA}
    written = metadata.pop("annotations", None) or {}
    annotations = {key: value for key, value in written.items() if key not in SERVER_ANNOTATIONS}
    if annotations:
        metadata["annotations"] = annotations
    kept = {key: value for key, value in document.items() if key != "status"}
    return {**kept, "metadata": metadata}


def _change(old: Manifest | None, new: Manifest | None) -> Change | None:
    kind: ChangeKind = "added" if old is None else "removed" if new is None else "changed"
    some = new or old
    assert some is not None
    after = without_noise(new.document) if new else {}
    before = _ordered_like(after, without_noise(old.document)) if old else {}
    if canonical(before) == canonical(after):
        return None
    label = "/".join(filter(None, (some.namespace, some.kind, some.name)))
    was, becomes = (_dump([document]).splitlines() if document else [] for document in (before, after))
    return Change(kind, some.key, tuple(unified_diff(was, becomes, f"old {label}", f"new {label}", lineterm="")))


def _ordered_like(model: Any, value: Any) -> Any:
    """The value with its keys in the model's order, so that only differences of meaning show."""
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
    """Without anchors, text over several lines as a block, quotes wherever a reader could see a number."""
    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else "'" if _AMBIGUOUS.match(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper
