"""What a cluster has, for the plan: add-ons, their versions, Knative's flags, the Gateway of routes, free GPUs.

By the names of plan's Capabilities. What may not be looked at is left out, and plan's default stands for it: an
ordinary cluster with everything installed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pilotlight.quantities import gpus as gpus_of
from pilotlight.quantities import is_gpu, number
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.cluster import AT_ONCE, Cluster
from pilotlight.targets.kubernetes.doors import GATEWAY_API, KNATIVE, OUR_GATEWAY
from pilotlight.targets.kubernetes.rights import allowed

Json = Any
Document = Mapping[str, Json]
Facts = dict[str, Json]

ROUTE_PARENT: Final = ("pilotlight-system", "pilotlight")
HTTP_SCALER: Final = "keda-add-ons-http-external-scaler"
SCALER_PORT: Final = 9090
KEDA_OPERATOR: Final = "app.kubernetes.io/name=keda-operator"
PROMETHEUS: Final = (("monitoring", "prometheus-operated"), ("monitoring", "prometheus"))
MONITORING: Final = "monitoring.coreos.com/v1"
_NOTHING: Final[Facts] = {}
_VERSION: Final = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")


def offers(cluster: Cluster) -> Facts:
    """All lookups at once: a plan waits for the slowest one only."""
    cluster.groups  # noqa: B018 — one failure to reach the cluster is told once
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda fact: allowed(lambda: fact(cluster), _NOTHING), FACTS))
    return {name: value for facts in found for name, value in facts.items()}


def kinds_known(cluster: Cluster) -> Facts:
    """A document that names no mode is serverless where it can be."""
    knative = cluster.kind(*kinds.KNATIVE_SERVICE) is not None
    return {
        "knative": knative,
        "default_mode": "serverless" if knative else "raw",
        "prometheus_operator": cluster.kind(MONITORING, "ServiceMonitor") is not None,
        "leader_worker_set": cluster.kind(*kinds.LEADER_WORKER_SET) is not None,
    }


def features(cluster: Cluster) -> Facts:
    told = cluster.get("v1", "ConfigMap", KNATIVE, "config-features")
    return {"features": flags_on(told.get("data") or {})} if told else {}


def flags_on(data: Mapping[str, str]) -> frozenset[str]:
    """What is written counts; for the rest the example beside it tells the defaults of the version installed."""
    pairs = re.findall(r'^\s*([\w.-]+):\s*"?(\w+)"?\s*$', data.get("_example", ""), re.MULTILINE)
    values = {**dict(pairs), **{name: value for name, value in data.items() if name != "_example"}}
    return frozenset(name for name, value in values.items() if value.lower() in ("enabled", "allowed"))


def domain(cluster: Cluster) -> Facts:
    told = cluster.get("v1", "ConfigMap", KNATIVE, "config-domain") or {}
    found = default_domain(told.get("data") or {})
    return {"domain": found} if found else {}


def default_domain(data: Mapping[str, str]) -> str:
    """The one without a selector."""
    return next((name for name, rule in data.items() if name != "_example" and "selector" not in (rule or "")), "")


def keda(cluster: Cluster) -> Facts:
    """A version that nobody tells is left out: KEDA is there, and an old one is the exception."""
    if cluster.kind(*kinds.SCALED_OBJECT) is None:
        return {"keda": ""}
    found = version_of(cluster.list(*kinds.DEPLOYMENT, None, KEDA_OPERATOR))
    return {"keda": found} if found else {}


def version_of(deployments: Iterable[Document]) -> str:
    """As the label says, else the image's tag; empty: neither is a version."""
    for each in deployments:
        image = str(each["spec"]["template"]["spec"]["containers"][0].get("image") or "")
        tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        for written in (kinds.labels(each).get("app.kubernetes.io/version", ""), tag):
            if matched := _VERSION.match(written):
                return matched[1]
    return ""


def routes(cluster: Cluster) -> Facts:
    """Without any Gateway a route would lead nowhere."""
    if cluster.kind(*kinds.HTTP_ROUTE) is None:
        return {"gateway_api": False}
    found = cluster.list(GATEWAY_API, "Gateway")
    return {"gateway_api": bool(found), **parent_among(found)}


def parent_among(gateways: Sequence[Document]) -> Facts:
    """The one that is called as we are, else the only one; among several others somebody has to choose."""
    places = [(str(each["metadata"]["namespace"]), str(each["metadata"]["name"])) for each in gateways]
    chosen = ROUTE_PARENT if ROUTE_PARENT in places else places[0] if len(places) == 1 else None
    return {"route_parent": {"name": chosen[1], "namespace": chosen[0]}} if chosen else {}


def our_gateway(cluster: Cluster) -> Facts:
    namespace, name = OUR_GATEWAY
    found = cluster.get("v1", "Service", namespace, name)
    return {"our_gateway": found is not None, "gateway_scaler": f"{name}.{namespace}.svc:{SCALER_PORT}"}


def http_add_on(cluster: Cluster) -> Facts:
    """The kind alone wakes nobody: its scaler must be there."""
    if cluster.kind("http.keda.sh/v1beta1", "InterceptorRoute") is None:
        return {"http_add_on": False}
    for each in cluster.list("v1", "Service"):
        if each["metadata"]["name"] == HTTP_SCALER:
            return {"http_add_on": True, "http_scaler": f"{HTTP_SCALER}.{each['metadata']['namespace']}:{SCALER_PORT}"}
    return {"http_add_on": False}


def prometheus(cluster: Cluster) -> Facts:
    for namespace, name in PROMETHEUS:
        found = cluster.get("v1", "Service", namespace, name)
        if found is not None:
            return {"prometheus": f"http://{name}.{namespace}.svc:{found['spec']['ports'][0]['port']}"}
    return {}


def gpus(cluster: Cluster) -> Facts:
    return {"gpus": free_gpus(cluster.list("v1", "Node"), cluster.list(*kinds.POD))}


def free_gpus(nodes: Iterable[Document], pods: Iterable[Document]) -> int:
    """What the nodes have, without what pods hold."""
    there = sum(
        int(number(amount))
        for node in nodes
        for resource, amount in ((node.get("status") or {}).get("allocatable") or {}).items()
        if is_gpu(resource)
    )
    held = sum(
        gpus_of(container)
        for pod in pods
        if pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for container in pod["spec"]["containers"]
    )
    return max(there - held, 0)


FACTS: Final = (
    kinds_known, features, domain, keda, routes, our_gateway, http_add_on, prometheus, gpus,
)  # fmt: skip
