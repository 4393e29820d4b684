"""Whether metrics of services arrive in the cluster's Prometheus: one check of `doctor --target kubernetes`."""

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

    there = [found for place in PROMETHEUS if (found := cluster.get("v1", "Service", *place)) is not None]
    if not there:
        message = "no Service prometheus-operated or prometheus in monitoring: triggers need its address"
        return Finding("warn", "metrics", message, "set prometheus in --capabilities to its URL")
    pods = [pod for pod in cluster.list(*kinds.POD, None, names.LABEL_SERVICE) if is_ready(pod)]
    arrived = counted(_answer(cluster, there[0]))
    name = there[0]["metadata"]["name"]
    ready = "1 pod of a service is ready" if len(pods) == 1 else f"{len(pods)} pods of services are ready"
    if pods and not arrived:
        message = f"{ready}, and {name} has no metrics of {'it' if len(pods) == 1 else 'any of them'}"
        return Finding("warn", "metrics", message, "is there an operator that acts on PodMonitors and ServiceMonitors?")
    message = f"{name} answers; {ready}, and it has metrics of {arrived}"
    return Finding("ok", "metrics", message)


def counted(answer: Document) -> int:
    """Instances whose metrics Prometheus has; a query that finds nothing has no result rather than a zero."""
    found = (answer.get("data") or {}).get("result") or ()
    return int(found[0]["value"][1]) if found else 0


def _answer(cluster: "Cluster", service: Document) -> Document:
    """Through the API server, since its address may be known in the cluster only; else by an address that answers."""
    metadata, port = service["metadata"], service["spec"]["ports"][0]["port"]
    place = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}:{port}"
    try:
        told: Document = cluster.connection.ask("GET", f"{place}/proxy/api/v1/query", QUERY).document
    except PlatformError:
        found = _directly(service)
        if found is None:
            raise
        return found
    return told


def _directly(service: Document) -> Document | None:
    from pilotlight.targets.kubernetes.doors import door_of
    from pilotlight.targets.kubernetes.ingress import connects

    for address, port in door_of(service).addresses:
        if connects(address, port):
            url = f"http://{address}:{port}/api/v1/query?{urlencode(QUERY)}"
            try:
                with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_S) as answer:
                    told: Document = json.load(answer)
            except (OSError, ValueError):
                continue
            return told
    return None
