"""Finalizer by which a controller keeps a deleted document until its service is deleted, and who removes it else.

A controller that is gone for good leaves its finalizers behind: documents would never end.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pilotlight.k8s import names
from pilotlight.k8s.timestamps import parse_utc
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.kubernetes.kinds import LEASE, unless_forbidden

Json = Any
Document = Mapping[str, Json]
LEASE_NAME: Final = "pilotlight-controller"  # of the leading controller
ANNOTATION_NAMESPACES: Final = f"{names.DOMAIN}/namespaces"  # on the Lease: the namespaces it acts on; empty: all
CLOCK_SKEW: Final = timedelta(seconds=30)  # between this machine and the controller's


def has_finalizer(document: Document) -> bool:
    return names.FINALIZER in (document["metadata"].get("finalizers") or ())


def is_led(lease: Document, namespace: str, now: datetime) -> bool:
    """Whether the holder of the Lease acts on a namespace, or on any for an empty one."""
    spec, annotations = lease.get("spec") or {}, lease["metadata"].get("annotations") or {}
    namespaces = [each for each in str(annotations.get(ANNOTATION_NAMESPACES) or "").split(",") if each]
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return False
    expires = parse_utc(spec["renewTime"]) + timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0))
    return now <= expires + CLOCK_SKEW and (not namespaces or not namespace or namespace in namespaces)


def is_controller_alive(cluster: Cluster, namespace: str) -> bool:
    """Whether a controller acts on a namespace, or on any for an empty one; True if Leases may not be read."""
    leases = unless_forbidden(lambda: cluster.list(*LEASE), None)
    if leases is None:
        return True
    now = datetime.now(UTC)
    return any(is_led(each, namespace, now) for each in leases if each["metadata"]["name"] == LEASE_NAME)


def remove_finalizer(cluster: Cluster, document: Document) -> None:
    """Remove the finalizer, so that a deleted document ends. Raises Conflict if it has changed since it was read."""
    metadata = document["metadata"]
    others = [each for each in metadata.get("finalizers") or () if each != names.FINALIZER]
    cluster.merge(document, {"metadata": {"finalizers": others, "resourceVersion": metadata.get("resourceVersion")}})
