"""Canary records as Leases, one per service, so that any machine can take over a canary; and queries of its metrics.

The Lease names the runner and its renew time; the history is an annotation. It is not part of a release: deploys do not
touch it, and it is deleted with the service.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pilotlight.canaries import stored_history
from pilotlight.canaries.events import CanaryEvent, canary_events
from pilotlight.errors import Conflict, PlatformError
from pilotlight.k8s import names
from pilotlight.k8s.timestamps import format_utc, parse_utc
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.capabilities import PROMETHEUS
from pilotlight.targets.kubernetes.client import MANAGER, Cluster, KubeApiError
from pilotlight.targets.kubernetes.kinds import FORBIDDEN, unless_forbidden
from pilotlight.targets.kubernetes.observe.events import post_event
from pilotlight.targets.kubernetes.service_route import endpoint_of
from pilotlight.targets.target import CanaryRecord, Key, Sample
from pilotlight.wire.machine import can_connect

if TYPE_CHECKING:
    from requests import Session

Json = Any
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
    namespaces = [str(each["metadata"]["name"]) for each in readable]
    return [record for home in namespaces for record in unless_forbidden(partial(_list_namespace, cluster, home), ())]


def _list_namespace(cluster: Cluster, namespace: str | None) -> list[CanaryRecord]:
    leases = cluster.list(*kinds.LEASE, namespace, f"{names.LABEL_SERVICE},{COMPONENT}=canary")
    return [read(each) for each in leases]


def get(cluster: Cluster, key: Key) -> CanaryRecord | None:
    lease = cluster.get(*kinds.LEASE, key[0], lease_name(key[1]))
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
    before = stored_history.decode_history(get(cluster, key)) if version else stored_history.decode_history(None)
    try:
        if not version:
            response = cluster.create(document)
        else:
            changed = {**document["metadata"], "resourceVersion": version}
            response = cluster.merge(document, {"metadata": changed, "spec": {**NO_HOLDER, **document["spec"]}})
    except (Conflict, KubeApiError) as error:
        if isinstance(error, KubeApiError) and error.code != CONFLICT:
            raise
        raise Conflict(f"the canary of {'/'.join(key)} was changed in the meantime; check it and retry") from error
    record = read(response.document)
    for each in canary_events(before, stored_history.decode_history(record)):
        _create_event(cluster, key, each)
    return record


def delete(cluster: Cluster, key: Key) -> None:
    """Delete the record; without the permission to read Leases there is none."""
    if unless_forbidden(lambda: get(cluster, key), None) is not None:
        cluster.delete(to_lease(key, "{}"))


def stable_generation(cluster: Cluster, key: Key) -> int:
    """Return the release that a canary rolls back to, which must not be pruned; 0: none."""
    try:
        current = stored_history.decode_history(get(cluster, key)).current
    except PlatformError:  # unreadable, or not permitted: no canary to protect
        return 0
    return current.stable_generation if current is not None else 0


def lease_name(service: str) -> str:
    return names.truncate(f"{service}-canary")


def to_lease(key: Key, state: str) -> dict[str, Json]:
    canary = stored_history.decode_history(CanaryRecord(*key, state, "")).current
    spec: dict[str, Json] = {}
    if canary is not None and canary.holder:
        lease_s = max(stored_history.MIN_LEASE_S, stored_history.LEASE_INTERVALS * canary.policy.interval_s)
        spec = {"holderIdentity": canary.holder, "leaseDurationSeconds": max(1, round(lease_s))}
        if canary.renewed_at:
            spec["renewTime"] = format_utc(parse_utc(canary.renewed_at), "microseconds")
    return {
        "apiVersion": kinds.LEASE[0],
        "kind": kinds.LEASE[1],
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
    try:
        workloads = cluster.list_kinds((kinds.KNATIVE_SERVICE, kinds.DEPLOYMENT), key[0], kinds.selector(key[1]))
        workload = next(each for each in workloads if not kinds.is_controlled(each))
    except (StopIteration, PlatformError):
        return
    post_event(cluster, workload, event.type, event.reason, f"{event.revision}: {event.message}")


def query(cluster: Cluster, promql: str, url: str = "") -> list[Sample]:
    """Evaluate PromQL at `url`, else at the cluster's Prometheus, through the API server or directly.

    Raises PlatformError with the first error if no Prometheus can be reached.
    """
    from pilotlight.prometheus.client import query_prometheus

    if url:
        return query_prometheus(url, promql)
    first_error: PlatformError | None = None
    for endpoint, session in _endpoints(cluster):
        try:
            return query_prometheus(endpoint, promql, session)
        except PlatformError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    message = "no Service prometheus-operated or prometheus in the namespace monitoring: no source of request metrics"
    raise PlatformError(message, "set --prometheus or PILOTLIGHT_PROMETHEUS to one that scrapes the services")


def _endpoints(cluster: Cluster) -> "Iterator[tuple[str, Session | None]]":
    for location in PROMETHEUS:
        service = cluster.get("v1", "Service", *location)
        if service is None:
            continue
        yield _api_server_proxy(cluster, service)
        for address, port in endpoint_of(service).addresses:
            if can_connect(address, port):
                yield f"http://{address}:{port}", None
        return


def _api_server_proxy(cluster: Cluster, service: Mapping[str, Json]) -> "tuple[str, Session]":
    """Return the proxy URL and a session with current credentials: the client library renews tokens."""
    from requests import Session

    configuration = cluster.connection.api.configuration
    metadata, port = service["metadata"], service["spec"]["ports"][0]["port"]
    session = Session()
    session.trust_env = False
    session.verify = (configuration.ssl_ca_cert or True) if configuration.verify_ssl else False
    session.cert = (configuration.cert_file, configuration.key_file) if configuration.cert_file else None
    credentials = configuration.auth_settings().values()
    session.headers.update({each["key"]: each["value"] for each in credentials if each["value"]})
    path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}:{port}/proxy"
    return configuration.host + path, session
