"""What the cluster's Prometheus says: asked through the API server, since its address may be known in there only.

An address that was given is asked before all; else the Service that offers.py finds.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pilotlight.errors import PlatformError
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.doors import door_of
from pilotlight.targets.kubernetes.ingress import connects
from pilotlight.targets.kubernetes.offers import PROMETHEUS
from pilotlight.targets.target import Sample

if TYPE_CHECKING:
    from requests import Session

Json = Any
SETTING: Final = "PILOTLIGHT_PROMETHEUS"


def query(cluster: Cluster, promql: str, given: str = "") -> list[Sample]:
    """Raises PlatformError where no Prometheus can be asked, with what each way there said."""
    from pilotlight.canary.prometheus import ask

    if given:
        return ask(given, promql)
    refused: PlatformError | None = None
    for url, session in _ways(cluster):
        try:
            return ask(url, promql, session)
        except PlatformError as error:
            refused = refused or error
    if refused is not None:
        raise refused
    message = "no Service prometheus-operated or prometheus in the namespace monitoring: nobody can say how requests go"
    raise PlatformError(message, f"--prometheus or {SETTING} names one that scrapes the services")


def _ways(cluster: Cluster) -> "Iterator[tuple[str, Session | None]]":
    for place in PROMETHEUS:
        service = cluster.get("v1", "Service", *place)
        if service is None:
            continue
        yield _through_the_server(cluster, service)
        for address, port in door_of(service).addresses:
            if connects(address, port):
                yield f"http://{address}:{port}", None
        return


def _through_the_server(cluster: Cluster, service: Mapping[str, Json]) -> "tuple[str, Session]":
    """With the credentials of the connection; a token is renewed by asking the client library for it each time."""
    from requests import Session

    configuration = cluster.connection.api.configuration
    metadata, port = service["metadata"], service["spec"]["ports"][0]["port"]
    session = Session()
    session.trust_env = False
    session.verify = (configuration.ssl_ca_cert or True) if configuration.verify_ssl else False
    session.cert = (configuration.cert_file, configuration.key_file) if configuration.cert_file else None
    told = configuration.auth_settings().values()
    session.headers.update({each["key"]: each["value"] for each in told if each["value"]})
    place = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}:{port}/proxy"
    return configuration.host + place, session
