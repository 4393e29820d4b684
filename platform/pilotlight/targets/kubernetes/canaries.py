"""Canary records as Leases, one per service, so that any machine can take over a canary.

The Lease names the runner and its renew time; the history is an annotation. It is not part of a release: deploys do not
touch it, and it is deleted with the service.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pilotlight import names
from pilotlight.canary import keeping
from pilotlight.canary.telling import CanaryEvent, canary_events
from pilotlight.errors import Conflict, PlatformError
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.cluster import MANAGER, Cluster
from pilotlight.targets.kubernetes.connection import KubeApiError
from pilotlight.targets.kubernetes.rights import FORBIDDEN, unless_forbidden
from pilotlight.targets.target import CanaryRecord, Key

Json = Any
API: Final = ("coordination.k8s.io/v1", "Lease")
ANNOTATION: Final = f"{names.DOMAIN}/canary"
COMPONENT: Final = "app.kubernetes.io/component"
CONFLICT: Final = 409
NO_HOLDER: Final = dict.fromkeys(("holderIdentity", "leaseDurationSeconds", "renewTime"))  # null removes a field


def list_canaries(cluster: Cluster, namespace: str | None) -> list[CanaryRecord]:
    """List canary records; without the permission for all namespaces, of those that may be read."""
    try:
        return _list_namespace(cluster, namespace)
    except KubeApiError as error:
        readable = None if namespace is not None else unless_forbidden(lambda: cluster.list("v1", "Namespace"), None)
        if error.code != FORBIDDEN or readable is None:
            raise
    names = [str(each["metadata"]["name"]) for each in readable]
    return [record for home in names for record in unless_forbidden(partial(_list_namespace, cluster, home), ())]


def _list_namespace(cluster: Cluster, namespace: str | None) -> list[CanaryRecord]:
    leases = cluster.list(*API, namespace, f"{names.LABEL_SERVICE},{COMPONENT}=canary")
    return [read(each) for each in leases]


def get(cluster: Cluster, key: Key) -> CanaryRecord | None:
    lease = cluster.get(*API, key[0], lease_name(key[1]))
    return read(lease) if lease is not None and names.LABEL_SERVICE in kinds.labels(lease) else None


def read(lease: Mapping[str, Json]) -> CanaryRecord:
    metadata = lease["metadata"]
    state = (metadata.get("annotations") or {}).get(ANNOTATION, "{}")
    return CanaryRecord(
        metadata["namespace"], metadata["labels"][names.LABEL_SERVICE], state, str(metadata["resourceVersion"])
    )


def save(cluster: Cluster, key: Key, state: str, version: str) -> CanaryRecord:
    """Write a record. Raises Conflict if it has changed since that version."""
    document = to_lease(key, state)
    before = keeping.decode_history(get(cluster, key)) if version else keeping.decode_history(None)
    try:
        if not version:
            response = cluster.create(document)
        else:
            changed = {**document["metadata"], "resourceVersion": version}
            response = cluster.merge(document, {"metadata": changed, "spec": {**NO_HOLDER, **document["spec"]}})
    except (Conflict, KubeApiError) as error:
        if isinstance(error, KubeApiError) and error.code != CONFLICT:
            raise
        raise Conflict(f"the canary of {'/'.join(key)} was changed meanwhile; look at it, and try again") from error
    record = read(response.document)
    for each in canary_events(before, keeping.decode_history(record)):
        _create_event(cluster, key, each)
    return record


def delete(cluster: Cluster, key: Key) -> None:
    """Delete the record; without the permission to read Leases there is none."""
    if unless_forbidden(lambda: get(cluster, key), None) is not None:
        cluster.delete(to_lease(key, "{}"))


def stable_generation(cluster: Cluster, key: Key) -> int:
    """Return the release that a canary rolls back to, which must not be pruned; 0: none."""
    try:
        current = keeping.decode_history(get(cluster, key)).current
    except PlatformError:  # unreadable, or not permitted: no canary to protect
        return 0
    return current.stable_generation if current is not None else 0


def lease_name(service: str) -> str:
    return names.truncate(f"{service}-canary")


def to_lease(key: Key, state: str) -> dict[str, Json]:
    canary = keeping.decode_history(CanaryRecord(*key, state, "")).current
    spec: dict[str, Json] = {}
    if canary is not None and canary.holder:
        lease_s = max(keeping.MIN_LEASE_S, keeping.LEASE_INTERVALS * canary.policy.interval_s)
        spec = {"holderIdentity": canary.holder, "leaseDurationSeconds": max(1, round(lease_s))}
        if canary.renewed_at:
            renewed_at = keeping.parse_timestamp(canary.renewed_at).astimezone(UTC)
            spec["renewTime"] = renewed_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "apiVersion": API[0],
        "kind": API[1],
        "metadata": {
            "name": lease_name(key[1]),
            "namespace": key[0],
            "labels": {
                "app.kubernetes.io/name": key[1],
                "app.kubernetes.io/managed-by": MANAGER,
                COMPONENT: "canary",
                names.LABEL_SERVICE: key[1],
            },
            "annotations": {ANNOTATION: state},
        },
        "spec": spec,
    }


def _create_event(cluster: Cluster, key: Key, event: CanaryEvent) -> None:
    """Create an Event on the workload, for `kubectl describe`; errors are ignored."""
    workloads: Sequence[Mapping[str, Json]] = ()
    now = datetime.now(UTC)
    try:
        workloads = cluster.list_kinds((kinds.KNATIVE_SERVICE, kinds.DEPLOYMENT), key[0], kinds.selector(key[1]))
        workload = next(each for each in workloads if not kinds.is_controlled(each))
        cluster.create(_event(key, event, workload, now))
    except (StopIteration, PlatformError):
        return


def _event(key: Key, event: CanaryEvent, workload: Mapping[str, Json], now: datetime) -> dict[str, Json]:
    metadata, at = workload["metadata"], now.strftime("%Y-%m-%dT%H:%M:%SZ")
    involved = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{lease_name(key[1])}-", "namespace": key[0]},
        "involvedObject": {"apiVersion": workload["apiVersion"], "kind": workload["kind"], **involved},
        "reason": event.reason,
        "message": f"{event.revision}: {event.message}"[:1000],
        "type": event.type,
        "source": {"component": MANAGER},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
