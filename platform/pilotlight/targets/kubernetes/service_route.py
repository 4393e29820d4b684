"""Route from this machine to a service of a cluster, through its ingress; for readiness probes and `infer`.

`open_route` uses PILOTLIGHT_INGRESS, else an address of the ingress endpoint that accepts connections, else a
port-forward to one of its pods. The Host header has the service's host, since DNS may not resolve it here.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import DecodeError, json

from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.client import Cluster, KubeApiError
from pilotlight.targets.kubernetes.kinds import FORBIDDEN, unless_forbidden
from pilotlight.targets.kubernetes.port_forward import PortForward
from pilotlight.targets.target import ServiceRoute
from pilotlight.wire.http_client import FAILURES, HttpClient
from pilotlight.wire.machine import can_connect

Json = Any
Object = Mapping[str, Json]
Addresses = tuple[tuple[str, int], ...]

SETTING: Final = "PILOTLIGHT_INGRESS"
HINT: Final = f"set {SETTING} to a URL that reaches the cluster's ingress, such as http://127.0.0.1:8080"
UNAUTHORIZED: Final = 401
PROBE_S: Final = 10.0
KNATIVE: Final = "knative-serving"
USUAL_INGRESS: Final = "istio.ingress.networking.knative.dev"
# By the first part of the ingress class in config-network.
INGRESSES: Final = {
    "kourier": ("kourier-system", "kourier"),
    "istio": ("istio-system", "istio-ingressgateway"),
    "contour": ("contour-external", "envoy"),
}
OUR_GATEWAY: Final = ("pilotlight-system", "pilotlight-gateway")
GATEWAY_API: Final = "gateway.networking.k8s.io/v1"
# Labels of the Service of a Gateway: the standard one, and Envoy Gateway's.
OWNERS: Final = ("gateway.networking.k8s.io/gateway-name", "gateway.envoyproxy.io/owning-gateway-name")


@dataclass(frozen=True, slots=True)
class IngressEndpoint:
    """`addresses` in order of preference; `name` of the Service, empty if only addresses are known."""

    description: str
    namespace: str
    name: str
    port_name: str
    addresses: Addresses


def find_endpoint(cluster: Cluster, host: str, namespace: str = "") -> IngressEndpoint:
    """Return the ingress endpoint of a host. Raises NotFound."""
    own = service_of(host)
    if own:
        return service_endpoint(cluster, *own)
    routes = cluster.list(GATEWAY_API, "HTTPRoute", namespace or None)
    route = next((each for each in routes if host in (each["spec"].get("hostnames") or ())), None)
    if route:
        return _gateway_of(cluster, route)
    if cluster.kind("serving.knative.dev/v1", "Service"):
        return service_endpoint(cluster, *ingress_of(cluster))
    return service_endpoint(cluster, *OUR_GATEWAY)


def service_of(host: str) -> tuple[str, str] | None:
    """Return namespace and name of a Service from its DNS name `iris.default.svc.cluster.local`; None: another host."""
    name, _, rest = host.partition(":")[0].partition(".")
    namespace, _, kind = rest.partition(".")
    inside = kind == "svc" or kind.startswith("svc.")
    return (namespace, name) if namespace and (inside or not kind) else None


def ingress_of(cluster: Cluster) -> tuple[str, str]:
    """Return namespace and name of Knative's external ingress Service."""
    config = (cluster.get("v1", "ConfigMap", KNATIVE, "config-network") or {}).get("data") or {}
    ingress_class = str(config.get("ingress-class") or config.get("ingress.class") or USUAL_INGRESS)
    ingress = INGRESSES.get(ingress_class.partition(".")[0])
    if ingress is None:
        raise NotFound(f"Knative's ingress class {ingress_class} is unknown", "set PILOTLIGHT_INGRESS")
    return ingress


def service_endpoint(cluster: Cluster, namespace: str, name: str) -> IngressEndpoint:
    """Return the endpoint of a Service; an ExternalName is followed."""
    service = cluster.get("v1", "Service", namespace, name)
    if service is None:
        raise NotFound(f"there is no Service {name} in {namespace}, the ingress for requests")
    elsewhere = service_of(str(service["spec"].get("externalName") or ""))
    if elsewhere:
        return service_endpoint(cluster, *elsewhere)
    return endpoint_of(service)


def endpoint_of(service: Object) -> IngressEndpoint:
    port = http_port(service["spec"].get("ports") or ())
    metadata = service["metadata"]
    addresses = tuple((address, int(port["port"])) for address in addresses_of(service))
    description = f"Service {metadata['name']} in {metadata['namespace']}"
    return IngressEndpoint(description, metadata["namespace"], metadata["name"], port.get("name", ""), addresses)


def addresses_of(service: Object) -> Sequence[str]:
    """Return load balancer addresses first, then the ClusterIP."""
    spec = service["spec"]
    balanced = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    outside = [each.get("ip") or each.get("hostname") for each in balanced] + list(spec.get("externalIPs") or ())
    own = spec.get("clusterIP")
    return [str(each) for each in (*outside, *([own] if own and own != "None" else ())) if each]


def http_port(ports: Sequence[Object]) -> Object:
    """Return the port for plain HTTP: 80, else by name, else the first."""
    names = ("http", "http2", "http1")
    candidates = [each for each in ports if each["port"] == 80] or [each for each in ports if each.get("name") in names]
    return (candidates or list(ports))[0] if ports else {"port": 80}


def _gateway_of(cluster: Cluster, route: Object) -> IngressEndpoint:
    """Return the route's Gateway; without the permission to read it, the route's backend Service."""
    parent = route["spec"]["parentRefs"][0]
    home = route["metadata"]["namespace"]
    where = (parent.get("namespace") or home, parent["name"])
    try:
        gateway = cluster.get(GATEWAY_API, "Gateway", *where)
    except KubeApiError as error:
        if error.code != FORBIDDEN:
            raise
        backend = route["spec"]["rules"][0]["backendRefs"][0]
        return service_endpoint(cluster, backend.get("namespace") or home, backend["name"])
    if gateway is None:
        raise NotFound(
            f"the Gateway {'/'.join(where)}, which the route {route['metadata']['name']} belongs to, is missing"
        )
    return _gateway(cluster, gateway)


def _gateway(cluster: Cluster, gateway: Object) -> IngressEndpoint:
    """Return the addresses of a Gateway's status, and its Service for a port-forward."""
    metadata = gateway["metadata"]
    description = f"Gateway {metadata['name']} in {metadata['namespace']}"
    listeners = [each for each in gateway["spec"]["listeners"] if each["protocol"] == "HTTP"]
    port = int(listeners[0]["port"]) if listeners else 80
    own = tuple((str(each["value"]), port) for each in (gateway.get("status") or {}).get("addresses") or ())
    services = unless_forbidden(lambda: cluster.list("v1", "Service"), ())
    service = service_behind(services, metadata["name"], [address for address, _ in own], port)
    if service is None:
        return IngressEndpoint(description, "", "", "", own)
    endpoint = endpoint_of(service)
    name = next((each.get("name", "") for each in service["spec"]["ports"] if each["port"] == port), endpoint.port_name)
    return IngressEndpoint(description, endpoint.namespace, endpoint.name, name, own or endpoint.addresses)


def service_behind(services: Sequence[Object], gateway: str, addresses: Sequence[str], port: int) -> Object | None:
    """Return the Service of a Gateway: by its label, else by a common address."""
    open_here = [each for each in services if any(one["port"] == port for one in each["spec"].get("ports") or ())]
    for each in open_here:
        labels = each["metadata"].get("labels") or {}
        if gateway in [labels.get(owner) for owner in OWNERS]:
            return each
    return next((each for each in open_here if set(addresses_of(each)) & set(addresses)), None)


class NotPermitted(PlatformError):
    """This account may not read the ingress; the service itself may be ready."""


def open_route(cluster: Cluster, status_url: str, namespace: str = "") -> AbstractContextManager[ServiceRoute]:
    """Open a route to the service at `status_url`. `namespace` of its HTTPRoute; empty: any.

    Raises NotFound and NotPermitted.
    """
    url = urlsplit(status_url)
    host = url.netloc
    headers = {"Host": host}
    exposed = url.port and service_of(host)  # a Service with a port of its own is behind no ingress
    if (configured := os.environ.get(SETTING)) and not exposed:
        if urlsplit(configured).scheme not in ("http", "https"):
            raise UsageError(f"{SETTING} = {configured}, must be a URL such as http://10.0.0.1")
        return nullcontext(ServiceRoute(configured.rstrip("/") + url.path, headers))
    if url.scheme == "https":
        return nullcontext(ServiceRoute(status_url))
    try:
        return _connect(cluster, find_endpoint(cluster, host, namespace), headers, url.path)
    except (NotFound, KubeApiError) as error:
        # Without a readable or known ingress, DNS may still resolve the host.
        if can_connect(url.hostname or "", url.port or 80):
            return nullcontext(ServiceRoute(status_url, headers))
        kind = NotPermitted if isinstance(error, KubeApiError) else NotFound
        raise kind(f"no route to {status_url}: {error}", HINT) from error


def _connect(
    cluster: Cluster, endpoint: IngressEndpoint, headers: Mapping[str, str], path: str
) -> AbstractContextManager[ServiceRoute]:
    for address, port in endpoint.addresses:
        if can_connect(address, port):
            return nullcontext(ServiceRoute(_url(address, port) + path, headers))
    return _forwarded(open_port_forward(cluster, endpoint), headers, path)


@contextmanager
def _forwarded(forward: PortForward, headers: Mapping[str, str], path: str) -> Iterator[ServiceRoute]:
    with forward:
        yield ServiceRoute(_url("127.0.0.1", forward.port) + path, headers)


def probe(route: ServiceRoute, path: str, timeout: float = PROBE_S) -> str:
    """Send a GET; return why it failed, empty: status 2xx, or 401, since only clients have the token."""
    client = HttpClient(route.url, timeout, route.headers)
    try:
        with client:
            response = client.request("GET", path)
    except FAILURES as error:
        return f"GET {path} through {client.address} got no response: {error or type(error).__name__}"
    if 200 <= response.status < 300 or response.status == UNAUTHORIZED:
        return ""
    message = reason_in(response.body) or response.reason
    return f"GET {path} returned {response.status}" + (f": {message}" if message else "")


def reason_in(body: bytes) -> str:
    """Return the message of an error body: of the usual JSON forms, else its first line."""
    try:
        message = json.decode(body)
    except DecodeError:
        return next(iter(body.decode(errors="replace").strip().splitlines()), "")[:200]
    while isinstance(message, dict):
        message = next((message[key] for key in ("error", "message", "reason", "detail") if message.get(key)), "")
    return str(message)[:200] if message else ""


def open_port_forward(cluster: Cluster, endpoint: IngressEndpoint) -> PortForward:
    """Open a port-forward to a ready pod of the endpoint. Raises NotFound if there is none."""
    for namespace, pod, port in _pods(cluster, endpoint):
        forward = PortForward(cluster.connection, namespace, pod, port)
        try:
            forward.check()
        except PlatformError as error:
            forward.close()
            raise NotPermitted(f"{endpoint.description} cannot be reached from here: {error}", HINT) from error
        return forward
    raise NotFound(f"{endpoint.description} has no reachable address and no ready pod", HINT)


def _pods(cluster: Cluster, endpoint: IngressEndpoint) -> Iterator[tuple[str, str, int]]:
    if not endpoint.name:
        return
    selector = f"kubernetes.io/service-name={endpoint.name}"
    for endpoint_slice in cluster.list("discovery.k8s.io/v1", "EndpointSlice", endpoint.namespace, selector):
        ports = endpoint_slice.get("ports") or ()
        port = next((each["port"] for each in ports if each.get("name", "") == endpoint.port_name), 0)
        yield from ((endpoint.namespace, pod, port) for pod in ready_pods(endpoint_slice) if port)


def ready_pods(endpoint_slice: Mapping[str, Json]) -> Sequence[str]:
    return [
        str(each["targetRef"]["name"])
        for each in endpoint_slice.get("endpoints") or ()
        if (each.get("targetRef") or {}).get("kind") == "Pod" and kinds.is_endpoint_ready(each)
    ]


def _url(address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}" if port != 80 else f"http://{host}"
