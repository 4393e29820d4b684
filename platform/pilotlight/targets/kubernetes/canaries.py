"""Canaries kept in the cluster: one Lease for each service, so that any machine can take over from another.

The Lease says in its own words who runs the canary and when it last said so; the ledger is an annotation. It is part of
no release: deploys leave it alone, and it goes with the service.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pilotlight import names
from pilotlight.canary import keeping
from pilotlight.canary.telling import Told, told
from pilotlight.errors import Conflict, PlatformError
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.cluster import MANAGER, Cluster
from pilotlight.targets.kubernetes.connection import Refused
from pilotlight.targets.kubernetes.rights import FORBIDDEN, allowed
from pilotlight.targets.target import KeptCanary, Key

Json = Any
API: Final = ("coordination.k8s.io/v1", "Lease")
ANNOTATION: Final = f"{names.DOMAIN}/canary"
COMPONENT: Final = "app.kubernetes.io/component"
CONFLICT: Final = 409
NOBODY: Final = dict.fromkeys(("holderIdentity", "leaseDurationSeconds", "renewTime"))  # null takes a field away


def listed(cluster: Cluster, namespace: str | None) -> list[KeptCanary]:
    """Who may not look into all namespaces sees those of the namespaces that he may look into."""
    try:
        return _in(cluster, namespace)
    except Refused as refused:
        spaces = None if namespace is not None else allowed(lambda: cluster.list("v1", "Namespace"), None)
        if refused.code != FORBIDDEN or spaces is None:
            raise
    homes = [str(each["metadata"]["name"]) for each in spaces]
    return [kept for home in homes for kept in allowed(partial(_in, cluster, home), ())]


def _in(cluster: Cluster, namespace: str | None) -> list[KeptCanary]:
    found = cluster.list(*API, namespace, f"{names.LABEL_SERVICE},{COMPONENT}=canary")
    return [read(each) for each in found]


def one(cluster: Cluster, key: Key) -> KeptCanary | None:
    found = cluster.get(*API, key[0], lease_name(key[1]))
    return read(found) if found is not None and names.LABEL_SERVICE in kinds.labels(found) else None


def read(lease: Mapping[str, Json]) -> KeptCanary:
    metadata = lease["metadata"]
    state = (metadata.get("annotations") or {}).get(ANNOTATION, "{}")
    return KeptCanary(
        metadata["namespace"], metadata["labels"][names.LABEL_SERVICE], state, str(metadata["resourceVersion"])
    )


def keep(cluster: Cluster, key: Key, state: str, version: str) -> KeptCanary:
    """Raises Conflict when somebody else has written since that version."""
    document = written(key, state)
    before = keeping.read(one(cluster, key)) if version else keeping.read(None)
    try:
        if not version:
            answer = cluster.create(document)
        else:
            changed = {**document["metadata"], "resourceVersion": version}
            answer = cluster.merge(document, {"metadata": changed, "spec": {**NOBODY, **document["spec"]}})
    except (Conflict, Refused) as error:
        if isinstance(error, Refused) and error.code != CONFLICT:
            raise
        raise Conflict(f"the canary of {'/'.join(key)} was changed meanwhile; look at it, and try again") from error
    kept = read(answer.document)
    for each in told(before, keeping.read(kept)):
        _note(cluster, key, each)
    return kept


def forget(cluster: Cluster, key: Key) -> None:
    """Who may not look at Leases has written none."""
    if allowed(lambda: one(cluster, key), None) is not None:
        cluster.delete(written(key, "{}"))


def stable_generation(cluster: Cluster, key: Key) -> int:
    """The release that a canary goes back to, which is kept however many steps it has taken; 0: none."""
    try:
        current = keeping.read(one(cluster, key)).current
    except PlatformError:  # not readable, or not ours to look at: then there is no canary of ours to care for
        return 0
    return current.stable_generation if current is not None else 0


def lease_name(service: str) -> str:
    return names.fit(f"{service}-canary")


def written(key: Key, state: str) -> dict[str, Json]:
    canary = keeping.read(KeptCanary(*key, state, "")).current
    spec: dict[str, Json] = {}
    if canary is not None and canary.holder:
        silence = max(keeping.LEAST_S, keeping.SILENT * canary.policy.interval_s)
        spec = {"holderIdentity": canary.holder, "leaseDurationSeconds": max(1, round(silence))}
        spec |= {"renewTime": _micro(canary.renewed_at)} if canary.renewed_at else {}
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


def _micro(instant: str) -> str:
    return keeping.instant(instant).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _note(cluster: Cluster, key: Key, event: Told) -> None:
    """An Event about the workload, where `kubectl describe` shows it. Who may not write any is not stopped by it."""
    workloads: Sequence[Mapping[str, Json]] = ()
    now = datetime.now(UTC)
    try:
        workloads = cluster.lists((kinds.KNATIVE_SERVICE, kinds.DEPLOYMENT), key[0], kinds.selector(key[1]))
        about = next(each for each in workloads if not kinds.is_controlled(each))
        cluster.create(_event(key, event, about, now))
    except (StopIteration, PlatformError):
        return


def _event(key: Key, event: Told, about: Mapping[str, Json], now: datetime) -> dict[str, Json]:
    metadata, at = about["metadata"], now.strftime("%Y-%m-%dT%H:%M:%SZ")
    involved = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{lease_name(key[1])}-", "namespace": key[0]},
        "involvedObject": {"apiVersion": about["apiVersion"], "kind": about["kind"], **involved},
        "reason": event.reason,
        "message": f"{event.revision}: {event.message}"[:1000],
        "type": event.type,
        "source": {"component": MANAGER},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
