"""Checks of `doctor --target kubernetes`: each returns one finding and changes nothing.

A finding names what is installed and its version. A missing component is a warning if some services need it; what RBAC
hides is reported as such.
"""

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

from pilotlight import contract
from pilotlight.errors import PlatformError
from pilotlight.k8s import names
from pilotlight.k8s.quantities import is_gpu, quantity_or_zero
from pilotlight.plan.types import Capabilities
from pilotlight.prometheus.client import decode, instant_query
from pilotlight.targets.kubernetes import capabilities, inferenceservice_mirror, kinds, releases
from pilotlight.targets.kubernetes.capabilities import MONITORING, PROMETHEUS
from pilotlight.targets.kubernetes.client import RETRY_S, Cluster, KubeApiError, KubeConnection, ResourceKind
from pilotlight.targets.kubernetes.kinds import FORBIDDEN
from pilotlight.targets.kubernetes.observe.diagnosis import PUSH_IMAGE, is_ready
from pilotlight.targets.kubernetes.preflight import LEAST_KEDA, OPTIONAL
from pilotlight.targets.kubernetes.service_route import (
    GATEWAY_API,
    KNATIVE,
    OUR_GATEWAY,
    endpoint_of,
    ingress_of,
    service_endpoint,
)
from pilotlight.targets.target import Finding
from pilotlight.wire.machine import can_connect

Json = Any
Document = Mapping[str, Json]
INSTANCES: Final = f"count(count by (instance) ({contract.METRIC_MODEL_STATE}))"
CONNECT_S: Final = 5.0
CHART: Final = "helm upgrade --install pilotlight helm/inference-platform -n pilotlight-system --create-namespace"
NO_RIGHT: Final = "no right to look"


def findings(cluster: Cluster, namespace: str, registry: str = "") -> Iterator[Finding]:
    """Yield findings by importance; stops after the first if the cluster does not answer.

    `registry` is the one of our images, if it is set.
    """
    # A clock that exhausts the retry budget at once: one failure is the answer.
    cluster = Cluster(KubeConnection(cluster.connection.api, clock=count(0.0, RETRY_S).__next__))
    first = reachable(cluster)
    yield first
    if first.level == "fail":
        return
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("image", lambda: image(cluster, registry)), ("knative", lambda: knative(cluster)),
        ("ingress", lambda: ingress(cluster)), ("keda", lambda: keda(cluster)),
        ("http add-on", lambda: http_add_on(cluster)), ("gateway", lambda: gateway(cluster)),
        ("gateway api", lambda: gateway_api(cluster)), ("prometheus operator", lambda: prometheus_operator(cluster)),
        ("Pilotlight CRDs", lambda: custom_resources(cluster)),
        ("namespace", lambda: namespace_exists(cluster, namespace)), ("rights", lambda: may_write(cluster, namespace)),
        ("reading", lambda: may_read(cluster, namespace)), ("metrics", lambda: metrics(cluster)),
        ("gpus", lambda: gpus(cluster)),
    )  # fmt: skip
    for name, check in checks:
        yield _run_check(name, check)


def image(cluster: Cluster, registry: str) -> Finding:
    """Check whether nodes can have our image: from a registry, or because it was loaded into each of them."""
    registry = registry or capabilities.image_registry(cluster).get("image_registry", "")
    name = Capabilities(image_registry=registry).own_image()
    if registry:
        return Finding("ok", "image", f"{name}, its variants beside it")
    nodes = cluster.list("v1", "Node")
    images = [(node.get("status") or {}).get("images") or () for node in nodes]
    having = [node for node in images if any(f"docker.io/{name}" in (each.get("names") or ()) for each in node)]
    if nodes and len(having) == len(nodes) and not _resolves_docker_hub(cluster):
        return Finding("ok", "image", f"{name} is on every node")
    if nodes and len(having) == len(nodes):
        message = f"{name} is on every node, but Knative looks its tag up at docker.io, which has none"
        return Finding("warn", "image", message, "load it as dev.local/… and set --image-registry dev.local")
    message = f"{len(having)} of {len(nodes)} nodes have {name}, which is in no public registry"
    return Finding("warn", "image", message, PUSH_IMAGE)


def _resolves_docker_hub(cluster: Cluster) -> bool:
    """Whether Knative resolves tags of images without a registry to digests, which needs that registry."""
    settings = kinds.unless_forbidden(lambda: cluster.get("v1", "ConfigMap", KNATIVE, "config-deployment"), None)
    if settings is None:
        return False
    return "index.docker.io" not in str((settings.get("data") or {}).get("registries-skipping-tag-resolving", ""))


def namespace_exists(cluster: Cluster, namespace: str) -> Finding:
    if cluster.get("v1", "Namespace", "", namespace) is None:
        return Finding("warn", "namespace", f"{namespace} is not there", f"kubectl create namespace {namespace}")
    return Finding("ok", "namespace", namespace)


def _run_check(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except PlatformError as error:
        if isinstance(error, KubeApiError) and error.code == FORBIDDEN:
            kind = (error.status.get("details") or {}).get("kind") or "it"
            namespace = re.search(r'in the namespace "([^"]+)"', str(error))
            message = f"{NO_RIGHT} at {kind} of {namespace[1] if namespace else 'the whole cluster'}"
            return Finding("warn", name, message, "let an administrator run this check")
        return Finding("fail", name, str(error), error.hint or "see the cluster's own log")


def reachable(cluster: Cluster) -> Finding:
    """Connect first: the connect timeout is shorter than that of a response."""
    configuration = cluster.connection.api.configuration
    url = urlsplit(configuration.host)
    try:
        if not configuration.proxy:
            port = url.port or (443 if url.scheme == "https" else 80)
            socket.create_connection((url.hostname or "", port), CONNECT_S).close()
        version = cluster.connection.request("GET", "/version").document
    except (OSError, PlatformError) as error:
        fix = "is KUBECONFIG the right one? kubectl config get-contexts, then --context NAME"
        return Finding("fail", "cluster", f"{configuration.host} does not answer: {error}", fix)
    return Finding("ok", "cluster", f"{configuration.host}, Kubernetes {str(version['gitVersion']).removeprefix('v')}")


def knative(cluster: Cluster) -> Finding:
    if cluster.kind(*kinds.KNATIVE_SERVICE) is None:
        message = "not installed: services run raw, none of them serverless"
        return Finding("warn", "knative", message, "knative.dev/docs/install, for services that scale to zero")
    settings = kinds.unless_forbidden(lambda: cluster.get("v1", "ConfigMap", KNATIVE, "config-features"), None)
    if settings is None:
        return Finding("ok", "knative", "installed; its version and its flags are not to be seen")
    version = kinds.labels(settings).get("app.kubernetes.io/version") or "of unknown version"
    flags = capabilities.flags_on(settings.get("data") or {})
    fields = sorted(flag.removeprefix("kubernetes.podspec-") for flag in flags if flag.startswith("kubernetes.podspec"))
    return Finding("ok", "knative", f"{version}; flags for pods: {', '.join(fields) or 'none'}")


def ingress(cluster: Cluster) -> Finding:
    if cluster.kind(*kinds.KNATIVE_SERVICE) is None:
        return Finding("ok", "ingress", "Knative has none, since it is not installed")
    namespace, name = ingress_of(cluster)
    endpoint = service_endpoint(cluster, namespace, name)
    answering = next((f"{address}:{port}" for address, port in endpoint.addresses if can_connect(address, port)), "")
    if not answering:
        message = f"{endpoint.description} has no address that answers here; requests go by a port-forward"
        return Finding("warn", "ingress", message, "set PILOTLIGHT_INGRESS to a URL that reaches it")
    return Finding("ok", "ingress", f"{name} of {namespace} answers at {answering}")


def keda(cluster: Cluster) -> Finding:
    if cluster.kind(*kinds.SCALED_OBJECT) is None:
        message = "not installed: raw services scale by CPU and memory only"
        fix = "helm install keda kedacore/keda -n keda --create-namespace"
        return Finding("warn", "keda", message, fix)
    version = str(kinds.unless_forbidden(lambda: capabilities.keda(cluster), {}).get("keda", ""))
    if version and tuple(map(int, version.split(".")[:2])) < LEAST_KEDA:
        return Finding("fail", "keda", f"{version} has no fallback for Value metrics", "upgrade it to 2.18 or later")
    return Finding("ok", "keda", version or "installed; its version is unknown")


def http_add_on(cluster: Cluster) -> Finding:
    add_on = capabilities.http_add_on(cluster)
    if add_on["http_add_on"]:
        return Finding("ok", "http add-on", f"its scaler is {add_on['http_scaler']}")
    return Finding("ok", "http add-on", "not installed; our gateway does the same")


def gateway(cluster: Cluster) -> Finding:
    namespace, name = OUR_GATEWAY
    deployment = cluster.get(*kinds.DEPLOYMENT, namespace, name)
    if deployment is None:
        message = f"there is no {name} in {namespace}: raw services cannot be woken from zero by it"
        return Finding("warn", "gateway", message, CHART)
    ready, desired = (
        int((deployment.get("status") or {}).get("readyReplicas") or 0),
        int(deployment["spec"].get("replicas") or 0),
    )
    message = f"{ready} of {desired} replicas of {name} are ready"
    if not ready:
        return Finding("fail", "gateway", message, f"kubectl describe pods -n {namespace} shows why")
    return Finding("warn" if ready < desired else "ok", "gateway", message, CHART if ready < desired else "")


def gateway_api(cluster: Cluster) -> Finding:
    if cluster.kind(*kinds.HTTP_ROUTE) is None:
        message = "not installed: raw services have no address outside the cluster"
        return Finding("warn", "gateway api", message, "gateway-api.sigs.k8s.io, and one of its implementations")
    gateways = cluster.list(GATEWAY_API, "Gateway")
    parent = capabilities.select_route_parent(gateways).get("route_parent")
    if parent is None:
        listed = ", ".join(f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in gateways)
        message = f"no Gateway is ours, and there are {listed}" if gateways else "there is no Gateway"
        fix = (
            "name one as routeParent in --capabilities"
            if gateways
            else "create a Gateway pilotlight in pilotlight-system"
        )
        return Finding("warn", "gateway api", message, fix)
    parent_name = f"{parent['namespace']}/{parent['name']}"
    chosen = next(
        each for each in gateways if f"{each['metadata']['namespace']}/{each['metadata']['name']}" == parent_name
    )
    conditions = (chosen.get("status") or {}).get("conditions") or ()
    if not any(each["type"] == "Programmed" and each["status"] == "True" for each in conditions):
        fix = f"kubectl describe gateway {parent['name']} -n {parent['namespace']} shows why"
        return Finding("warn", "gateway api", f"the Gateway {parent_name} is not programmed", fix)
    return Finding("ok", "gateway api", f"routes hang on the Gateway {parent_name}")


def prometheus_operator(cluster: Cluster) -> Finding:
    absent = [kind for kind in OPTIONAL if cluster.kind(MONITORING, kind) is None]
    if absent:
        message = f"the cluster knows no {', '.join(absent)}: services are not scraped by them"
        return Finding("warn", "prometheus operator", message, "prometheus-operator.dev, or scrape pods on port 8082")
    return Finding("ok", "prometheus operator", ", ".join(OPTIONAL))


def custom_resources(cluster: Cluster) -> Finding:
    known = [kind for kind in inferenceservice_mirror.SERVICE_KINDS if cluster.kind(*kind) is not None]
    if not known:
        message = "InferenceService is no kind here: kubectl shows services by their parts only"
        return Finding("ok", "Pilotlight CRDs", message)
    descriptions = [
        f"{kind[1]} of {kind[0]} "
        f"({'ours' if inferenceservice_mirror.is_our_crd(cluster, kind) else 'of another controller'})"
        for kind in known
    ]
    return Finding("ok", "Pilotlight CRDs", ", ".join(descriptions))


def may_write(cluster: Cluster, namespace: str) -> Finding:
    """Check write permissions on all installed kinds of a service."""
    kinds_present = [
        known for each in (*kinds.OWNED, releases.API, kinds.LEASE) if (known := cluster.kind(*each)) is not None
    ]
    denied = kinds.missing_permissions(
        cluster, [(kind, namespace) for kind in kinds_present], ("create", "patch", "delete")
    )
    if not denied:
        return Finding("ok", "rights", f"may write all {len(kinds_present)} kinds of a service in {namespace}")
    return Finding("fail", "rights", _denied(denied, namespace), _bind("pilotlight-deployer", namespace))


def may_read(cluster: Cluster, namespace: str) -> Finding:
    plain = [cluster.require_kind(*each) for each in (kinds.POD, kinds.EVENT)]
    denied = [
        *kinds.missing_permissions(cluster, [(kind, namespace) for kind in plain], ("get", "list", "watch")),
        *kinds.missing_permissions(cluster, [(ResourceKind("v1", "Pod", "pods/log", True), namespace)], ("get",)),
        *kinds.missing_permissions(
            cluster, [(ResourceKind("v1", "Pod", "pods/portforward", True), namespace)], ("get", "create")
        ),
    ]
    if not denied:
        return Finding("ok", "reading", f"may read pods, logs and events of {namespace}, and forward ports")
    return Finding("warn", "reading", _denied(denied, namespace), _bind("pilotlight-viewer", namespace))


def _denied(denied: Sequence[tuple[ResourceKind, str, tuple[str, ...]]], namespace: str) -> str:
    """`in models: no create, patch of deployments, services; no get of pods/log`."""
    by_verbs: dict[tuple[str, ...], list[str]] = {}
    for kind, _, verbs in denied:
        by_verbs.setdefault(verbs, []).append(f"{kind.plural}.{kind.group}" if kind.group else kind.plural)
    listed = (f"no {', '.join(verbs)} of {', '.join(plurals)}" for verbs, plurals in by_verbs.items())
    return f"in {namespace}: {'; '.join(listed)}"


def _bind(role: str, namespace: str) -> str:
    return f"kubectl create rolebinding {role} --clusterrole {role} --user YOU -n {namespace}"


def metrics(cluster: Cluster) -> Finding:
    services = [service for place in PROMETHEUS if (service := cluster.get("v1", "Service", *place)) is not None]
    if not services:
        message = "no Service prometheus-operated or prometheus in monitoring: triggers need its address"
        return Finding("warn", "metrics", message, "set prometheus in --capabilities to its URL")
    pods = [pod for pod in cluster.list(*kinds.POD, None, names.LABEL_SERVICE) if is_ready(pod)]
    scraped = _scraped_instances(cluster, services[0])
    name = services[0]["metadata"]["name"]
    ready = "1 pod of a service is ready" if len(pods) == 1 else f"{len(pods)} pods of services are ready"
    if pods and not scraped:
        message = f"{ready}, and {name} has no metrics of {'it' if len(pods) == 1 else 'any of them'}"
        return Finding("warn", "metrics", message, "is there an operator that acts on PodMonitors and ServiceMonitors?")
    message = f"{name} answers; {ready}, and it has metrics of {scraped}"
    return Finding("ok", "metrics", message)


def _scraped_instances(cluster: Cluster, service: Document) -> int:
    """Query through the API server's proxy, else directly at an address that accepts connections."""
    metadata, port = service["metadata"], service["spec"]["ports"][0]["port"]
    service_path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}:{port}"
    try:
        response = cluster.connection.request("GET", f"{service_path}/proxy/api/v1/query", {"query": INSTANCES})
        samples = decode(metadata["name"], response.document)
    except PlatformError:
        for address, port in endpoint_of(service).addresses:
            with suppress(PlatformError):
                if can_connect(address, port):
                    samples = instant_query(f"http://{address}:{port}", INSTANCES)
                    break
        else:
            raise
    return int(samples[0].value) if samples else 0  # PromQL's `count` of nothing has no result instead of 0


def gpus(cluster: Cluster) -> Finding:
    nodes = cluster.list("v1", "Node")
    gpu_nodes = [
        node
        for node in nodes
        if any(
            is_gpu(name) and quantity_or_zero(count) > 0
            for name, count in (node["status"].get("allocatable") or {}).items()
        )
    ]
    if not gpu_nodes:
        return Finding("ok", "gpus", f"none of the {len(nodes)} nodes has any; models run on CPUs")
    free = capabilities.free_gpus(nodes, cluster.list(*kinds.POD))
    return Finding("ok", "gpus", f"{len(gpu_nodes)} of {len(nodes)} nodes have some; {free} are free")
