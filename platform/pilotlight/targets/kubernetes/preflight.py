"""Checks before anything is written: requirements of the manifests against the cluster.

Each check is a function of cluster and manifests that yields one sentence with a fix per problem. A check without the
permission to read is skipped; the API server decides then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pilotlight.contract import ENV_PARK_MEMORY
from pilotlight.k8s import knative_features
from pilotlight.k8s.names import ANNOTATION_PARK
from pilotlight.k8s.quantities import is_gpu, quantity_or_zero
from pilotlight.targets.kubernetes import capabilities, kinds
from pilotlight.targets.kubernetes.client import CONCURRENCY, Cluster
from pilotlight.targets.kubernetes.service_route import GATEWAY_API, KNATIVE, OUR_GATEWAY

Json = Any
Document = Mapping[str, Json]
Reference = tuple[str, str]  # kind and name, in the pod's namespace

_NOTHING: Final[list[str]] = []
WORKLOADS: Final = ("Deployment", "StatefulSet", "LeaderWorkerSet", "RayCluster", "Service")
_UNKNOWN: Final[dict[str, Json]] = {}  # assumed to exist if it may not be read
OPTIONAL: Final = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
LEAST_KEDA: Final = (2, 18)  # older ones support a fallback for AverageValue only
USUAL_TIMEOUT_S: Final = 600
SHARING: Final = "nvidia.com/gpu.sharing-strategy"  # node label of NVIDIA's GPU feature discovery
DEPLOYER: Final = "pilotlight-deployer"  # ClusterRole of the chart inference-platform
# How to install the kinds of an API group.
INSTALLS: Final = {
    "serving.knative.dev": "install Knative Serving (knative.dev/docs/install)",
    "keda.sh": "install KEDA 2.18 or later: helm install keda kedacore/keda -n keda --create-namespace",
    "http.keda.sh": "install KEDA's HTTP add-on: helm install http-add-on kedacore/keda-add-ons-http -n keda",
    "gateway.networking.k8s.io": "install Gateway API and one of its implementations (gateway-api.sigs.k8s.io)",
    "inference.networking.k8s.io": "install the Gateway API Inference Extension (gateway-api-inference-extension.sigs."
    "k8s.io), or set routing_strategy to prefix_aware",
    "leaderworkerset.x-k8s.io": "install LeaderWorkerSet (lws.sigs.k8s.io)",
    "ray.io": "install KubeRay (docs.ray.io)",
    "monitoring.coreos.com": "install the Prometheus Operator (prometheus-operator.dev)",
}


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """Pod template of an object; `owner` is `Deployment iris-predictor`."""

    owner: str
    namespace: str
    spec: Document


def pod_templates(manifests: Iterable[Document]) -> Iterator[PodTemplate]:
    """Yield the templates of a Deployment, StatefulSet, Knative Service, LeaderWorkerSet or RayCluster."""
    for document in manifests:
        metadata, spec = document["metadata"], document.get("spec") or {}
        group = spec.get("leaderWorkerTemplate") or {}
        ray = [spec.get("headGroupSpec") or {}, *(spec.get("workerGroupSpecs") or ())]
        templates = (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate"))
        for template in (*templates, *(part.get("template") for part in ray)):
            pod_spec = (template or {}).get("spec") or {}
            if pod_spec.get("containers"):
                yield PodTemplate(f"{document['kind']} {metadata['name']}", metadata.get("namespace", ""), pod_spec)


def referenced_objects(spec: Document) -> Iterator[Reference]:
    """Yield the objects that must exist before such a pod can start, without optional ones."""
    if spec.get("serviceAccountName"):
        yield "ServiceAccount", spec["serviceAccountName"]
    yield from (("Secret", each["name"]) for each in spec.get("imagePullSecrets") or ())
    for volume in spec.get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            yield "PersistentVolumeClaim", claim["claimName"]
        for source in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            yield from _needed("Secret", source.get("secret"))
            yield from _needed("ConfigMap", source.get("configMap"))
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        yield from _container_references(container)


def _container_references(container: Document) -> Iterator[Reference]:
    for source in container.get("envFrom") or ():
        yield from _needed("Secret", source.get("secretRef"))
        yield from _needed("ConfigMap", source.get("configMapRef"))
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        yield from _needed("Secret", source.get("secretKeyRef"))
        yield from _needed("ConfigMap", source.get("configMapKeyRef"))


def _needed(kind: str, written: Document | None) -> Iterator[Reference]:
    """Yield a non-optional reference; volumes use `secretName` instead of `name`."""
    name = (written or {}).get("secretName") or (written or {}).get("name")
    if written and name and not written.get("optional"):
        yield kind, str(name)


def gpu_resources(spec: Document) -> set[str]:
    resources = [container.get("resources") or {} for container in spec["containers"]]
    amounts = [part.get(kind) or {} for part in resources for kind in ("limits", "requests")]
    return {name for each in amounts for name, count in each.items() if is_gpu(name) and quantity_or_zero(count) > 0}


def requests_parking(spec: Document) -> bool:
    """Whether its predictor parks: frees GPU memory while it gets no requests."""
    variables = [each for container in spec["containers"] for each in container.get("env") or ()]
    return any(each["name"] == ENV_PARK_MEMORY and each.get("value") not in (None, "", "0", "0%") for each in variables)


def missing(cluster: Cluster, manifests: Sequence[Document]) -> list[str]:
    """Return a sentence with a fix for each problem."""
    cluster.groups  # noqa: B018 — an unreachable cluster is reported once
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        results = pool.map(
            lambda check: kinds.unless_forbidden(lambda: list(check(cluster, manifests)), _NOTHING), CHECKS
        )
        return list(dict.fromkeys(sentence for sentences in results for sentence in sentences))


def drop_unknown_optional(cluster: Cluster, manifests: Sequence[Document]) -> tuple[list[Document], list[str]]:
    """Return the manifests without monitoring kinds that the cluster does not serve, and a warning for each kind."""
    known, warnings = [], {}
    for document in manifests:
        api, kind = document["apiVersion"], document["kind"]
        if kind in OPTIONAL and cluster.kind(api, kind) is None:
            warnings[kind] = f"the cluster has no {kind}, so none is created; for monitoring, {_install(api)}"
        else:
            known.append(document)
    return known, list(warnings.values())


def unknown_kinds(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    for api, kind in dict.fromkeys((each["apiVersion"], each["kind"]) for each in manifests):
        if cluster.kind(api, kind) is None:
            other = cluster.groups.get(api.rpartition("/")[0])
            upgrade = f"it serves {other}; upgrade it" if other and other != api else ""
            yield f"{kind} of {api} is not installed in this cluster: {upgrade or _install(api)}"


def _install(api: str) -> str:
    group = api.rpartition("/")[0]
    return INSTALLS.get(group, f"install the component that provides {group or api}")


def namespaces(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    rendered = {each["metadata"]["name"] for each in manifests if each["kind"] == "Namespace"}
    for name in dict.fromkeys(each["metadata"].get("namespace") for each in manifests):
        if not name or name in rendered:
            continue
        namespace = cluster.get("v1", "Namespace", "", name)
        if namespace is None:
            yield f"the namespace {name} does not exist: kubectl create namespace {name}"
        elif (namespace.get("status") or {}).get("phase") == "Terminating":
            yield f"the namespace {name} is being deleted: wait until it is gone, then create it again"


def knative_settings(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    services = [each for each in manifests if (each["apiVersion"], each["kind"]) == kinds.KNATIVE_SERVICE]
    if not services or cluster.kind(*kinds.KNATIVE_SERVICE) is None:
        return
    on = capabilities.features(cluster).get("features", frozenset())
    for pod in pod_templates(services):
        for flag, field in knative_features.flags(pod.spec):
            if flag not in on:
                yield f"Knative's flag {flag} is off and {pod.owner} has {field}: {_patch('config-features', flag)}"
    config = (cluster.get("v1", "ConfigMap", KNATIVE, "config-defaults") or {}).get("data") or {}
    limit = int(config.get("max-revision-timeout-seconds") or USUAL_TIMEOUT_S)
    for pod in pod_templates(services):
        wanted = int(pod.spec.get("timeoutSeconds") or 0)
        if wanted > limit:
            fix = _patch("config-defaults", "max-revision-timeout-seconds", str(wanted))
            yield f"{pod.owner} has timeoutSeconds {wanted}, and Knative allows {limit}: {fix}"


def _patch(settings: str, name: str, value: str = "enabled") -> str:
    change = f'{{"data":{{"{name}":"{value}"}}}}'
    return f"kubectl patch configmap {settings} -n {KNATIVE} --type merge -p '{change}'"


def keda_version(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """Check KEDA's version for fallbacks on Value metrics, which older ones reject."""
    wanted = [
        each
        for each in manifests
        if each["kind"] == "ScaledObject" and each["spec"].get("fallback")
        if any(trigger.get("metricType") == "Value" for trigger in each["spec"]["triggers"])
    ]
    version = capabilities.keda(cluster).get("keda", "") if wanted else ""
    if version and tuple(map(int, version.split(".")[:2])) < LEAST_KEDA:
        names = ", ".join(each["metadata"]["name"] for each in wanted)
        yield f"KEDA {version} has no fallback for Value metrics, which {names} needs: upgrade it to 2.18 or later"


def gateways(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    for route in manifests:
        if route["kind"] != "HTTPRoute" or cluster.kind(*kinds.HTTP_ROUTE) is None:
            continue
        home = route["metadata"]["namespace"]
        for parent in route["spec"].get("parentRefs") or ():
            if parent.get("kind", "Gateway") == "Gateway":
                yield from _gateway(cluster, parent.get("namespace") or home, parent["name"], home)


def _gateway(cluster: Cluster, namespace: str, name: str, home: str) -> Iterator[str]:
    gateway = cluster.get(GATEWAY_API, "Gateway", namespace, name)
    if gateway is None:
        gateways = kinds.unless_forbidden(lambda: cluster.list(GATEWAY_API, "Gateway"), ())
        existing = [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in gateways]
        other = f", or set an existing one as routeParent in --capabilities ({', '.join(existing)})" if existing else ""
        yield f"the Gateway {namespace}/{name}, the parent of the route, does not exist: create it{other}"
        return
    allowed = [(each.get("allowedRoutes") or {}).get("namespaces") or {} for each in gateway["spec"]["listeners"]]
    if namespace != home and all(each.get("from", "Same") == "Same" for each in allowed):
        fix = "set allowedRoutes.namespaces.from: All on one of its listeners"
        yield f"the Gateway {namespace}/{name} accepts routes of its own namespace only, not of {home}: {fix}"


def scalers(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """Check that external scalers exist, by addresses such as `name.namespace.svc:9090`."""
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
    """Check that referenced objects are in the cluster or in the manifests."""
    rendered = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in manifests}
    seen: set[tuple[str, str, str]] = set()
    for pod in pod_templates(manifests):
        for kind, name in referenced_objects(pod.spec):
            wanted = (kind, pod.namespace, name)
            if wanted in rendered or wanted in seen:
                continue
            seen.add(wanted)
            if kinds.unless_forbidden(partial(cluster.get, "v1", *wanted), _UNKNOWN) is None:
                yield f"{pod.owner} refers to the {kind} {name}, which {pod.namespace} does not have: create it first"


def devices(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """Check that nodes have the requested GPUs, unless the cluster may add nodes."""
    wanted = {name: pod.owner for pod in pod_templates(manifests) for name in sorted(gpu_resources(pod.spec))}
    if not wanted or has_autoscaler(cluster):
        return
    nodes = cluster.list("v1", "Node")
    available = {name for node in nodes for name in (node.get("status") or {}).get("allocatable") or ()}
    for name in [each for each in wanted if each not in available]:
        fix = "add a GPU node with its device plugin, or remove the resource"
        yield f"{wanted[name]} requests {name}, which no node of this cluster has: {fix}"


def has_gpus(cluster: Cluster) -> bool:
    """Whether a node has GPUs; False without permission to list nodes."""
    nodes = kinds.unless_forbidden(lambda: cluster.list("v1", "Node"), ())
    amounts = [each for node in nodes for each in ((node.get("status") or {}).get("allocatable") or {}).items()]
    return any(is_gpu(name) and quantity_or_zero(count) > 0 for name, count in amounts)


def shared_gpus(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    """Check that parking pods share GPUs: freed GPU memory is useless if the pod has the GPU for itself."""
    parks = [pod.owner for pod in pod_templates(manifests) if requests_parking(pod.spec) and gpu_resources(pod.spec)]
    if not parks or has_autoscaler(cluster):
        return
    labels = [(node["metadata"].get("labels") or {}).get(SHARING) for node in cluster.list("v1", "Node")]
    if not {"time-slicing", "mps"} & set(labels):
        fix = "share GPUs by time-slicing or MPS in NVIDIA's device plugin, or remove the annotation"
        for owner in parks:
            yield f"{owner} parks ({ANNOTATION_PARK}), and no node has a GPU that pods share ({SHARING}): {fix}"


def has_autoscaler(cluster: Cluster) -> bool:
    """Whether the cluster adds nodes by itself."""
    status = partial(cluster.get, "v1", "ConfigMap", "kube-system", "cluster-autoscaler-status")
    return "karpenter.sh" in cluster.groups or bool(kinds.unless_forbidden(status, None))


def permissions(cluster: Cluster, manifests: Sequence[Document]) -> Iterator[str]:
    wanted = dict.fromkeys(
        (kind, each["metadata"].get("namespace", ""))
        for each in manifests
        if (kind := cluster.kind(each["apiVersion"], each["kind"])) is not None
    )
    homes = {each["metadata"].get("namespace", "") for each in manifests if each["kind"] in WORKLOADS}
    wanted |= dict.fromkeys((cluster.require_kind("apps/v1", "ControllerRevision"), home) for home in homes if home)
    for kind, namespace, verbs in kinds.missing_permissions(cluster, wanted):
        resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        fix = f"kubectl create rolebinding {DEPLOYER} --clusterrole {DEPLOYER} --user YOU -n {namespace}"
        yield f"you may not {' or '.join(verbs)} {resource} in {namespace}: {fix}"


CHECKS: Final = (
    unknown_kinds, namespaces, knative_settings, keda_version, gateways, scalers, references, devices, shared_gpus,
    permissions,
)  # fmt: skip
