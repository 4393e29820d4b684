"""Kubernetes objects between render and target: their identity, the order in which they are applied, YAML, diff."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

# Earlier kinds are needed by later ones; deleting goes the other way.
APPLY_ORDER: Final = (
    "Namespace", "CustomResourceDefinition", "ServiceAccount", "Secret", "ConfigMap", "PersistentVolumeClaim", "Role",
    "RoleBinding", "NetworkPolicy", "ControllerRevision", "TriggerAuthentication", "Service", "Deployment",
    "StatefulSet", "LeaderWorkerSet", "RayCluster", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject",
    "InterceptorRoute", "ReferenceGrant", "HTTPRoute", "ServiceMonitor", "PodMonitor", "PrometheusRule",
)  # fmt: skip


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
    def key(self) -> tuple[str, str, str, str]:
        """Identity: group without version, kind, namespace, name."""
        return (self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name)


def in_order(manifests: Iterable[Manifest]) -> list[Manifest]:
    """As they are applied. A Knative Service is applied with the workloads, though it shares its kind's name."""

    def rank(manifest: Manifest) -> tuple[int, str, str]:
        kind = "Deployment" if manifest.api_version.startswith("serving.knative.dev/") else manifest.kind
        place = APPLY_ORDER.index(kind) if kind in APPLY_ORDER else len(APPLY_ORDER)
        return (place, manifest.namespace, manifest.name)

    return sorted(manifests, key=rank)


def to_yaml(manifests: Sequence[Manifest]) -> str:
    """A multi-document stream, keys in the order in which they were rendered."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump_all(
        [manifest.document for manifest in manifests], Dumper=dumper, sort_keys=False, default_flow_style=False,
        allow_unicode=True, width=120, explicit_start=True,
    )  # fmt: skip


def canonical(document: Any) -> str:
    """One text per meaning: what hashes and comparisons are made of."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
