"""What manifests need against what the cluster has, before the first object is written: everything at once, with fixes.

Each check is a function of cluster and manifests that yields sentences. What may not be looked at is not judged here;
the API server will.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from pilotlight import pod_flags
from pilotlight.names import ANNOTATION_PARK
from pilotlight.targets.kubernetes import kinds, offers, pod_needs, rights
from pilotlight.targets.kubernetes.cluster import AT_ONCE, Cluster
from pilotlight.targets.kubernetes.doors import GATEWAY_API, KNATIVE, OUR_GATEWAY

Json = Any
Document = Mapping[str, Json]

OPTIONAL: Final = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
LEAST_KEDA: Final = (2, 18)  # before it, a fallback holds for AverageValue only
USUAL_TIMEOUT_S: Final = 600
SHARING: Final = "nvidia.com/gpu.sharing-strategy"  # a node's label, by NVIDIA's feature discovery
DEPLOYER: Final = "pilotlight-deployer"  # a role of the chart inference-platform
# What brings the kinds of a group.
INSTALLS: Final = {
    "serving.knative.dev": "install Knative Serving (knative.dev/docs/install)",
    "keda.sh": "install KEDA 2.18 or later: helm install keda kedacore/keda -n keda --create-namespace",
    "http.keda.sh": "install KEDA's HTTP add-on: helm install http-add-on kedacore/keda-add-ons-http -n keda",
    "gateway.networking.k8s.io": "install Gateway API and one of its implementations (gateway-api.sigs.k8s.io)",
    "leaderworkerset.x-k8s.io": "install LeaderWorkerSet (lws.sigs.k8s.io)",
    "ray.io": "install KubeRay (docs.ray.io)",
    "monitoring.coreos.com": "install the Prometheus Operator (prometheus-operator.dev)",
}


def missing(cluster: Cluster, manifests: Sequence[Document]) -> list[str]:
    """One sentence for each thing, with its fix; empty: nothing that could be looked at is."""
    cluster.groups  # noqa: B018 — a cluster that does not answer is told once
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda check: rights.allowed(lambda: list(check(cluster, manifests)), _NOTHING), CHECKS))
    return list(dict.fromkeys(sentence for sentences in found for sentence in sentences))


def optional(cluster: Cluster, manifests: Sequence[Document]) -> tuple[list[Document], list[str]]:
    """Without what only watches the service, where the cluster does not know it; and a sentence for each kind."""
    kept, told = [], {}
    for document in manifests:
        api, kind = document["apiVersion"], document["kind"]
        if kind in OPTIONAL and cluster.kind(api, kind) is None:
            told[kind] = f"the cluster knows no {kind}, and none is written; to be watched, {_install(api)}"
        else:
            kept.append(document)
    return kept, list(told.values())


def unknown_kinds(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    for api, kind in dict.fromkeys((each["apiVersion"], each["kind"]) for each in manifests):
        if cluster.kind(api, kind) is None:
            yield f"{kind} of {api} is no kind of this cluster: {_served(cluster, api) or _install(api)}"


def _served(cluster: Cluster, api: str) -> str:
    other = cluster.groups.get(api.rpartition("/")[0])
    return f"it serves {other}; upgrade what brings that group" if other and other != api else ""


def _install(api: str) -> str:
    group = api.rpartition("/")[0]
    return INSTALLS.get(group, f"install what brings {group or api}")


def namespaces(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    made = {each["metadata"]["name"] for each in manifests if each["kind"] == "Namespace"}
    for name in dict.fromkeys(each["metadata"].get("namespace") for each in manifests):
        if not name or name in made:
            continue
        found = cluster.get("v1", "Namespace", "", name)
        if found is None:
            yield f"the namespace {name} does not exist: kubectl create namespace {name}"
        elif (found.get("status") or {}).get("phase") == "Terminating":
            yield f"the namespace {name} is being deleted: wait until it is gone, then create it again"


def knative_settings(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    services = [each for each in manifests if (each["apiVersion"], each["kind"]) == kinds.KNATIVE_SERVICE]
    if not services or cluster.kind(*kinds.KNATIVE_SERVICE) is None:
        return
    on = offers.features(cluster).get("features", frozenset())
    for pod in pod_needs.pods(services):
        for flag, field in pod_flags.flags(pod.spec):
            if flag not in on:
                yield f"Knative's flag {flag} is off and {pod.owner} has {field}: {_patch('config-features', flag)}"
    limit = _longest(cluster)
    for pod in pod_needs.pods(services):
        wanted = int(pod.spec.get("timeoutSeconds") or 0)
        if wanted > limit:
            fix = _patch("config-defaults", "max-revision-timeout-seconds", str(wanted))
            yield f"{pod.owner} has timeoutSeconds {wanted}, and Knative allows {limit}: {fix}"


def _longest(cluster: Cluster) -> int:
    told = (cluster.get("v1", "ConfigMap", KNATIVE, "config-defaults") or {}).get("data") or {}
    return int(told.get("max-revision-timeout-seconds") or USUAL_TIMEOUT_S)


def _patch(settings: str, name: str, value: str = "enabled") -> str:
    change = f'{{"data":{{"{name}":"{value}"}}}}'
    return f"kubectl patch configmap {settings} -n {KNATIVE} --type merge -p '{change}'"


def keda_version(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """Where a fallback is to hold for a level: an older KEDA refuses the object."""
    wanted = [each for each in manifests if each["kind"] == "ScaledObject" and _falls_back_on_value(each["spec"])]
    version = offers.keda(cluster).get("keda", "") if wanted else ""
    if version and tuple(map(int, version.split(".")[:2])) < LEAST_KEDA:
        names = ", ".join(each["metadata"]["name"] for each in wanted)
        yield f"KEDA {version} has no fallback for Value metrics, which {names} needs: upgrade it to 2.18 or later"


def _falls_back_on_value(spec: Document) -> bool:
    return bool(spec.get("fallback")) and any(each.get("metricType") == "Value" for each in spec["triggers"])


def gateways(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    for route in manifests:
        if route["kind"] != "HTTPRoute" or cluster.kind(*kinds.HTTP_ROUTE) is None:
            continue
        home = route["metadata"]["namespace"]
        for parent in route["spec"].get("parentRefs") or ():
            if parent.get("kind", "Gateway") == "Gateway":
                yield from _gateway(cluster, parent.get("namespace") or home, parent["name"], home)


def _gateway(cluster: Cluster, namespace: str, name: str, home: str) -> Iterator[str]:
    found = cluster.get(GATEWAY_API, "Gateway", namespace, name)
    if found is None:
        there = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in _gateways(cluster)]
        fix = f"there is {', '.join(there)}; name one as routeParent in --capabilities" if there else "create it"
        yield f"the Gateway {namespace}/{name}, which the route hangs on, does not exist: {fix}"
    elif namespace != home and all(_keeps_to_itself(each) for each in found["spec"]["listeners"]):
        fix = "set allowedRoutes.namespaces.from: All on one of its listeners"
        yield f"the Gateway {namespace}/{name} takes routes of its own namespace only, not of {home}: {fix}"


def _gateways(cluster: Cluster) -> Sequence[Document]:
    return rights.allowed(lambda: cluster.list(GATEWAY_API, "Gateway"), ())


def _keeps_to_itself(listener: Document) -> bool:
    return str(((listener.get("allowedRoutes") or {}).get("namespaces") or {}).get("from", "Same")) == "Same"


def scalers(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """Whoever KEDA is to ask about requests, by an address such as `name.namespace.svc:9090`."""
    objects = [each for each in manifests if each["kind"] == "ScaledObject"]
    for trigger in (trigger for each in objects for trigger in each["spec"]["triggers"]):
        address = str((trigger.get("metadata") or {}).get("scalerAddress") or "")
        name, _, rest = address.partition(":")[0].partition(".")
        namespace = rest.partition(".")[0]
        if namespace and cluster.get("v1", "Service", namespace, name) is None:
            ours = (namespace, name) == OUR_GATEWAY
            fix = "install the chart inference-platform there" if ours else "install KEDA's HTTP add-on"
            yield f"the scaler {address} has no Service {name} in {namespace}: {fix}"


def references(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """What pods mention and neither the cluster nor the manifests have."""
    made = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in manifests}
    seen: set[tuple[str, str, str]] = set()
    for pod in pod_needs.pods(manifests):
        for kind, name in pod_needs.mentioned(pod.spec):
            wanted = (kind, pod.namespace, name)
            if wanted in made or wanted in seen:
                continue
            seen.add(wanted)
            if rights.allowed(partial(cluster.get, "v1", *wanted), _THERE) is None:
                yield f"{pod.owner} mentions the {kind} {name}, which is not in {pod.namespace}: create it there first"


def devices(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """A cluster that grows by itself may get nodes that nobody sees yet."""
    wanted = {name: pod.owner for pod in pod_needs.pods(manifests) for name in sorted(pod_needs.devices(pod.spec))}
    if not wanted or grows(cluster):
        return
    nodes = cluster.list("v1", "Node")
    there = {name for node in nodes for name in (node.get("status") or {}).get("allocatable") or ()}
    for name in [each for each in wanted if each not in there]:
        fix = "add a GPU node with its device plugin, or leave the resource out"
        yield f"{wanted[name]} asks for {name}, which no node of this cluster has: {fix}"


def shared_gpus(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """A pod that parks gives memory of its GPU back for others; where it has the GPU for itself there are none."""
    parks = [
        pod.owner for pod in pod_needs.pods(manifests) if pod_needs.parks(pod.spec) and pod_needs.devices(pod.spec)
    ]
    if not parks or grows(cluster):
        return
    labels = [(node["metadata"].get("labels") or {}).get(SHARING) for node in cluster.list("v1", "Node")]
    if not {"time-slicing", "mps"} & set(labels):
        fix = "share GPUs by time-slicing or MPS in NVIDIA's device plugin, or leave the annotation out"
        for owner in parks:
            yield f"{owner} parks ({ANNOTATION_PARK}), and no node has a GPU that pods share ({SHARING}): {fix}"


def grows(cluster: Cluster) -> bool:
    """Whether somebody adds nodes when there is need: what no node has today may be there tomorrow."""

    def status() -> Any:
        return cluster.get("v1", "ConfigMap", "kube-system", "cluster-autoscaler-status")

    return "karpenter.sh" in cluster.groups or bool(rights.allowed(status, None))


def permissions(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    wanted = dict.fromkeys(
        (kind, each["metadata"].get("namespace", ""))
        for each in manifests
        if (kind := cluster.kind(each["apiVersion"], each["kind"])) is not None
    )
    homes = {each["metadata"].get("namespace", "") for each in manifests if each["kind"] in WORKLOADS}
    wanted |= {(cluster.known("apps/v1", "ControllerRevision"), home): None for home in homes if home}  # the release
    for kind, namespace, verbs in rights.lacking(cluster, wanted):
        resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        fix = f"kubectl create rolebinding {DEPLOYER} --clusterrole {DEPLOYER} --user YOU -n {namespace}"
        yield f"you may not {' or '.join(verbs)} {resource} in {namespace}: {fix}"


_NOTHING: Final[list[str]] = []
WORKLOADS: Final = ("Deployment", "StatefulSet", "LeaderWorkerSet", "RayCluster", "Service")
_THERE: Final[dict[str, Json]] = {}  # what may not be looked at is taken to be there
CHECKS: Final = (
    unknown_kinds, namespaces, knative_settings, keda_version, gateways, scalers, references, devices, shared_gpus,
    permissions,
)  # fmt: skip
