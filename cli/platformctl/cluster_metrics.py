"""Check of `doctor --target kubernetes`: do metrics of services arrive in the cluster's Prometheus?"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from pilotlight import contract, names
from pilotlight.errors import PlatformError
from platformctl.checks import Finding

if TYPE_CHECKING:
    from pilotlight.targets.kubernetes.cluster import Cluster

Json = Any
Document = Mapping[str, Json]
ANSWER_S: Final = 5.0
QUERY: Final = {"query": f"count(count by (instance) ({contract.METRIC_MODEL_STATE}))"}


def metrics(cluster: "Cluster") -> Finding:
    from pilotlight.targets.kubernetes import kinds
    from pilotlight.targets.kubernetes.causes import is_ready
    from pilotlight.targets.kubernetes.offers import PROMETHEUS

    services = [service for place in PROMETHEUS if (service := cluster.get("v1", "Service", *place)) is not None]
    if not services:
        message = "no Service prometheus-operated or prometheus in monitoring: triggers need its address"
        return Finding("warn", "metrics", message, "set prometheus in --capabilities to its URL")
    pods = [pod for pod in cluster.list(*kinds.POD, None, names.LABEL_SERVICE) if is_ready(pod)]
    scraped = instance_count(_query(cluster, services[0]))
    name = services[0]["metadata"]["name"]
    ready = "1 pod of a service is ready" if len(pods) == 1 else f"{len(pods)} pods of services are ready"
    if pods and not scraped:
        message = f"{ready}, and {name} has no metrics of {'it' if len(pods) == 1 else 'any of them'}"
        return Finding("warn", "metrics", message, "is there an operator that acts on PodMonitors and ServiceMonitors?")
    message = f"{name} answers; {ready}, and it has metrics of {scraped}"
    return Finding("ok", "metrics", message)


def instance_count(answer: Document) -> int:
    """Return the number of scraped instances; PromQL's `count` of nothing has no result instead of 0."""
    result = (answer.get("data") or {}).get("result") or ()
    return int(result[0]["value"][1]) if result else 0


def _query(cluster: "Cluster", service: Document) -> Document:
    """Query through the API server's proxy, else directly at an address that accepts connections."""
    metadata, port = service["metadata"], service["spec"]["ports"][0]["port"]
    service_path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}:{port}"
    try:
        answer: Document = cluster.connection.request("GET", f"{service_path}/proxy/api/v1/query", QUERY).document
    except PlatformError:
        direct = _query_directly(service)
        if direct is None:
            raise
        return direct
    return answer


def _query_directly(service: Document) -> Document | None:
    from pilotlight.targets.kubernetes.doors import endpoint_of
    from pilotlight.targets.kubernetes.ingress import can_connect

    for address, port in endpoint_of(service).addresses:
        if can_connect(address, port):
            url = f"http://{address}:{port}/api/v1/query?{urlencode(QUERY)}"
            try:
                with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_S) as response:
                    answer: Document = json.load(response)
            except (OSError, ValueError):
                continue
            return answer
    return None
