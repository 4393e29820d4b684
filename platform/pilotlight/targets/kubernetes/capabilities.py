"""What the cluster offers a plan: its capabilities, and its runtimes, models and accelerators as catalogue documents.

Capabilities have the field names of the plan's Capabilities. Facts that may not be read are left out, and the plan's
default applies: a cluster with everything installed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from pilotlight.k8s.manifest import without_server_fields
from pilotlight.k8s.quantities import gpu_count, is_gpu, quantity_or_zero
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import CONCURRENCY, Cluster
from pilotlight.targets.kubernetes.kinds import unless_forbidden
from pilotlight.targets.kubernetes.service_route import GATEWAY_API, KNATIVE, OUR_GATEWAY

Json = Any
Document = Mapping[str, Json]
Facts = dict[str, Json]

ROUTE_PARENT: Final = ("pilotlight-system", "pilotlight")
GPU_MEMORY: Final = "nvidia.com/gpu.memory"
KEDA_NAMESPACE: Final = "keda"
HTTP_SCALER: Final = "keda-add-ons-http-external-scaler"
SCALER_PORT: Final = 9090
KEDA_OPERATOR: Final = "app.kubernetes.io/name=keda-operator"
PROMETHEUS: Final = (("monitoring", "prometheus-operated"), ("monitoring", "prometheus"))
MONITORING: Final = "monitoring.coreos.com/v1"
OME: Final = "ome.io/v1beta1"
KSERVE: Final = "serving.kserve.io/v1alpha1"
CATALOGUE: Final = (
    (OME, "ServingRuntime"), (OME, "ClusterServingRuntime"), (KSERVE, "ServingRuntime"),
    (KSERVE, "ClusterServingRuntime"), (OME, "BaseModel"), (OME, "ClusterBaseModel"), (OME, "FineTunedWeight"),
    (OME, "AcceleratorClass"), (KSERVE, "LocalModelCache"), (KSERVE, "LocalModelNamespaceCache"),
)  # fmt: skip
_NOTHING: Final[Facts] = {}
_OUR_IMAGE: Final = re.compile(r"(.+)/pilotlight/predictor(?:[:@].*)?")
_VERSION: Final = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")


def discover(cluster: Cluster) -> Facts:
    """Return the capabilities; all lookups run concurrently."""
    cluster.groups  # noqa: B018 — an unreachable cluster is reported once
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        results = list(pool.map(lambda fact: unless_forbidden(lambda: fact(cluster), _NOTHING), FACTS))
    return {name: value for facts in results for name, value in facts.items()}


def kinds_known(cluster: Cluster) -> Facts:
    """Installed kinds; without a mode in the document, serverless is the default if Knative is there."""
    knative = cluster.kind(*kinds.KNATIVE_SERVICE) is not None
    return {
        "knative": knative,
        "default_mode": "serverless" if knative else "raw",
        "prometheus_operator": cluster.kind(MONITORING, "ServiceMonitor") is not None,
        "leader_worker_set": cluster.kind(*kinds.LEADER_WORKER_SET) is not None,
    }


def features(cluster: Cluster) -> Facts:
    config_map = cluster.get("v1", "ConfigMap", KNATIVE, "config-features")
    return {"features": flags_on(config_map.get("data") or {})} if config_map else {}


def flags_on(data: Mapping[str, str]) -> frozenset[str]:
    """Return enabled flags; `_example` documents the defaults of the installed version."""
    pairs = re.findall(r'^\s*([\w.-]+):\s*"?(\w+)"?\s*$', data.get("_example", ""), re.MULTILINE)
    values = {**dict(pairs), **{name: value for name, value in data.items() if name != "_example"}}
    return frozenset(name for name, value in values.items() if value.lower() in ("enabled", "allowed"))


def domain(cluster: Cluster) -> Facts:
    config_map = cluster.get("v1", "ConfigMap", KNATIVE, "config-domain") or {}
    rules = (config_map.get("data") or {}).items()
    name = next((name for name, rule in rules if name != "_example" and "selector" not in (rule or "")), "")
    return {"domain": name} if name else {}


def domain_mapping(cluster: Cluster) -> Facts:
    """Whether a DomainMapping becomes ready: without its claim, which Knative may not make, it never does."""
    network = cluster.get("v1", "ConfigMap", KNATIVE, "config-network") or {}
    claims = (network.get("data") or {}).get("autocreate-cluster-domain-claims") == "true"
    return {"domain_mapping": claims and cluster.kind(*kinds.DOMAIN_MAPPING) is not None}


def keda(cluster: Cluster) -> Facts:
    """KEDA's version, left out if unknown."""
    if cluster.kind(*kinds.SCALED_OBJECT) is None:
        return {"keda": ""}
    deployments = cluster.list(*kinds.DEPLOYMENT, None, KEDA_OPERATOR)
    # Any namespace may have a Deployment with that label.
    version = version_of(sorted(deployments, key=lambda each: each["metadata"].get("namespace") != KEDA_NAMESPACE))
    return {"keda": version} if version else {}


def version_of(deployments: Iterable[Document]) -> str:
    """Return the version by label, else by image tag; empty: neither is a version."""
    for each in deployments:
        image = str(each["spec"]["template"]["spec"]["containers"][0].get("image") or "")
        tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
        for written in (kinds.labels(each).get("app.kubernetes.io/version", ""), tag):
            if matched := _VERSION.match(written):
                return matched[1]
    return ""


def routes(cluster: Cluster) -> Facts:
    """Gateway API; it counts only with a Gateway."""
    if cluster.kind(*kinds.HTTP_ROUTE) is None:
        return {"gateway_api": False}
    gateways = cluster.list(GATEWAY_API, "Gateway")
    return {"gateway_api": bool(gateways), **select_route_parent(gateways)}


def select_route_parent(gateways: Sequence[Document]) -> Facts:
    """Return our own Gateway, else the only one; among several others the user has to choose."""
    names = [(str(each["metadata"]["namespace"]), str(each["metadata"]["name"])) for each in gateways]
    chosen = ROUTE_PARENT if ROUTE_PARENT in names else names[0] if len(names) == 1 else None
    return {"route_parent": {"name": chosen[1], "namespace": chosen[0]}} if chosen else {}


def gateway(cluster: Cluster) -> Facts:
    namespace, name = OUR_GATEWAY
    service = cluster.get("v1", "Service", namespace, name)
    return {"our_gateway": service is not None, "gateway_scaler": f"{name}.{namespace}.svc:{SCALER_PORT}"}


def image_registry(cluster: Cluster) -> Facts:
    """The registry of our gateway's image, which has the other variants too; left out if it names none."""
    deployment = cluster.get(*kinds.DEPLOYMENT, *OUR_GATEWAY)
    image = str(deployment["spec"]["template"]["spec"]["containers"][0].get("image")) if deployment else ""
    matched = _OUR_IMAGE.fullmatch(image)
    return {"image_registry": matched[1]} if matched else {}


def http_add_on(cluster: Cluster) -> Facts:
    """KEDA's HTTP add-on; its CRD alone is not enough, the scaler must be there.

    Requests are sent to where it is, and any namespace may have a Service of its name: of several, KEDA's counts.
    """
    if cluster.kind("http.keda.sh/v1beta1", "InterceptorRoute") is None:
        return {"http_add_on": False}
    services = unless_forbidden(lambda: cluster.list("v1", "Service"), None)
    if services is None:  # a role may name single Services
        services = [each for each in [cluster.get("v1", "Service", KEDA_NAMESPACE, HTTP_SCALER)] if each]
    homes = [each["metadata"]["namespace"] for each in services if each["metadata"]["name"] == HTTP_SCALER]
    home = KEDA_NAMESPACE if KEDA_NAMESPACE in homes else homes[0] if len(homes) == 1 else ""
    return (
        {"http_add_on": True, "http_scaler": f"{HTTP_SCALER}.{home}:{SCALER_PORT}"} if home else {"http_add_on": False}
    )


def prometheus(cluster: Cluster) -> Facts:
    for namespace, name in PROMETHEUS:
        service = cluster.get("v1", "Service", namespace, name)
        if service is not None:
            return {"prometheus": f"http://{name}.{namespace}.svc:{service['spec']['ports'][0]['port']}"}
    return {}


def gpus(cluster: Cluster) -> Facts:
    nodes = cluster.list("v1", "Node")
    facts = {"gpus": free_gpus(nodes, cluster.list(*kinds.POD)), "gpus_total": allocatable_gpus(nodes)}
    return {**facts, "gpu_memory": least_gpu_memory(nodes)}


def allocatable_gpus(nodes: Iterable[Document]) -> int:
    """Return the GPUs of all nodes, free or not."""
    return sum(
        int(quantity_or_zero(amount))
        for node in nodes
        for resource, amount in ((node.get("status") or {}).get("allocatable") or {}).items()
        if is_gpu(resource)
    )


def least_gpu_memory(nodes: Iterable[Document]) -> int:
    """Return the bytes of the smallest GPU that NVIDIA's feature discovery has labelled (in MiB); 0: none is."""
    labels = (kinds.labels(node).get(GPU_MEMORY, "") for node in nodes)
    return min((int(text) * 2**20 for text in labels if text.isdecimal()), default=0)


def free_gpus(nodes: Iterable[Document], pods: Iterable[Document]) -> int:
    """Return allocatable GPUs minus those requested by pods."""
    requested = sum(
        gpu_count(container)
        for pod in pods
        if pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        for container in pod["spec"]["containers"]
    )
    return max(allocatable_gpus(nodes) - requested, 0)


FACTS: Final = (
    kinds_known, features, domain, domain_mapping, keda, routes, gateway, image_registry, http_add_on, prometheus,
    gpus,
)  # fmt: skip


def cluster_catalogue(
    cluster: Cluster, namespaces: Iterable[str]
) -> tuple[Sequence[tuple[str, Document]], Sequence[str]]:
    """Return the documents of the cluster and of these namespaces with their origins, such as `cluster: BaseModel x`.

    Also a warning about kinds that may not be read. They rank after -f and --catalog and before the built-in ones.
    """
    documents: list[tuple[str, Document]] = []
    forbidden: list[str] = []
    for version, kind, namespace in _locations(cluster, tuple(namespaces)):
        listed = unless_forbidden(partial(cluster.list, version, kind, namespace), None)
        if listed is None:
            forbidden.append(kind)
        documents += [(origin(each), without_cluster_fields(each)) for each in listed or ()]
    named = ", ".join(dict.fromkeys(forbidden))
    warning = f"the cluster's {named} cannot be read with your permissions and are ignored"
    return documents, [warning] if forbidden else []


def _locations(cluster: Cluster, namespaces: tuple[str, ...]) -> Iterable[tuple[str, str, str | None]]:
    for version, name in CATALOGUE:
        kind = cluster.kind(version, name)
        for namespace in () if kind is None else namespaces if kind.namespaced else (None,):
            yield version, name, namespace


def origin(document: Mapping[str, Json]) -> str:
    metadata = document["metadata"]
    named = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    return f"cluster: {document['kind']} {named}"


def without_cluster_fields(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the document without status and fields that the API server or controllers add."""
    cleaned = without_server_fields(document)
    dropped = ("finalizers", "ownerReferences")
    cleaned["metadata"] = {name: value for name, value in cleaned["metadata"].items() if name not in dropped}
    return cleaned
