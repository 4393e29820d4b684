"""Queries to the cluster's Prometheus, through the API server: its address may be reachable inside only.

A configured URL is used instead of the Service that offers.py knows.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.doors import endpoint_of
from pilotlight.targets.kubernetes.ingress import can_connect
from pilotlight.targets.kubernetes.offers import PROMETHEUS
from pilotlight.targets.target import Sample

if TYPE_CHECKING:
    from requests import Session

Json = Any
SETTING: Final = "PILOTLIGHT_PROMETHEUS"


def query(cluster: Cluster, promql: str, url: str = "") -> list[Sample]:
    """Evaluate PromQL. Raises PlatformError with the first error if no Prometheus can be reached."""
    from pilotlight.canary.prometheus import query_prometheus

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
    message = "no Service prometheus-operated or prometheus in the namespace monitoring: nobody can say how requests go"
    raise PlatformError(message, f"--prometheus or {SETTING} names one that scrapes the services")


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
