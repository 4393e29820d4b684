"""Pod fields that Knative rejects unless a flag of its ConfigMap config-features enables them.

plan lists them as requirements, the Kubernetes target checks them against the cluster before applying.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

Json = Any
FLAG: Final = "kubernetes.podspec-"

_FLAGGED_FIELDS: Final = (
    "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "runtimeClassName", "initContainers",
    "priorityClassName", "schedulerName", "securityContext", "shareProcessNamespace", "hostIPC", "hostPID",
    "hostNetwork", "hostAliases", "dnsPolicy", "dnsConfig",
)  # fmt: skip
POD_FLAGS: Final = {field: field.lower() for field in _FLAGGED_FIELDS} | {"initContainers": "init-containers"}
VOLUME_FLAGS: Final[Mapping[str, str]] = {
    "persistentVolumeClaim": "persistent-volume-claim",
    "hostPath": "volumes-hostpath",
    "csi": "volumes-csi",
    "image": "volumes-image",
    "ephemeral": "volumes-ephemeral",
}
PROBE_FIELDS: Final = frozenset(("livenessProbe", "readinessProbe", "startupProbe"))
SIDECAR_PROBES: Final = "multi-container-probing"
WRITTEN_CLAIM: Final = "persistent-volume-write"
# Fields that Knative allows, with or without a flag; it rejects all others.
KNATIVE_POD_FIELDS: Final = frozenset(
    ("containers", "volumes", "serviceAccountName", "imagePullSecrets", "enableServiceLinks",
     "automountServiceAccountToken", *POD_FLAGS)
)  # fmt: skip


def flags(spec: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield each flag that a pod spec needs, with the field that needs it."""
    for field, flag in POD_FLAGS.items():
        if spec.get(field):
            yield FLAG + flag, field
    for volume in spec.get("volumes") or ():
        for kind, flag in VOLUME_FLAGS.items():
            if kind in volume:
                yield FLAG + flag, f"volume {volume['name']}"
        claim = volume.get("persistentVolumeClaim")
        if claim is not None and not claim.get("readOnly"):
            yield FLAG + WRITTEN_CLAIM, f"volume {volume['name']}, which is not readOnly"
    containers = spec.get("containers") or ()
    for container in containers:
        if len(containers) > 1 and not container.get("ports") and PROBE_FIELDS & container.keys():
            yield SIDECAR_PROBES, f"a probe of {container['name']}, which receives no requests"
        for variable in container.get("env") or ():
            if {"fieldRef", "resourceFieldRef"} & (variable.get("valueFrom") or {}).keys():
                yield f"{FLAG}fieldref", f"variable {variable['name']}"
