"""Which Service stands in front of a service's host: its own, a Gateway's, Knative's ingress, or our gateway.

First half of ingress.py: names and addresses by the cluster's objects alone, nothing is connected to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pilotlight.errors import NotFound
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import Refused
from pilotlight.targets.kubernetes.rights import FORBIDDEN, allowed

Json = Any
Object = Mapping[str, Json]
Addresses = tuple[tuple[str, int], ...]

KNATIVE: Final = "knative-serving"
USUAL_INGRESS: Final = "istio.ingress.networking.knative.dev"
# By the first part of the ingress class that config-network names.
INGRESSES: Final = {
    "kourier": ("kourier-system", "kourier"),
    "istio": ("istio-system", "istio-ingressgateway"),
    "contour": ("contour-external", "envoy"),
}
OUR_GATEWAY: Final = ("pilotlight-system", "pilotlight-gateway")
GATEWAY_API: Final = "gateway.networking.k8s.io/v1"
# By which an implementation marks the Service that it makes for a Gateway: the standard's label, Envoy Gateway's own.
OWNERS: Final = ("gateway.networking.k8s.io/gateway-name", "gateway.envoyproxy.io/owning-gateway-name")


@dataclass(frozen=True, slots=True)
class Door:
    """`addresses` in the order in which they are worth a try; `name` is empty where only addresses are known."""

    told: str
    namespace: str
    name: str
    port_name: str
    addresses: Addresses


def door_to(cluster: Cluster, host: str, namespace: str = "") -> Door:
    """Raises NotFound with what was looked for."""
    own = service_of(host)
    if own:
        return service_door(cluster, *own)
    route = _route_of(cluster, host, namespace)
    if route:
        return _gateway_of(cluster, route)
    if cluster.kind("serving.knative.dev/v1", "Service"):
        return service_door(cluster, *ingress_of(cluster))
    return service_door(cluster, *OUR_GATEWAY)


def service_of(host: str) -> tuple[str, str] | None:
    """Namespace and name where the host is a Service's name in the cluster: `iris.default.svc.cluster.local`."""
    name, _, rest = host.partition(":")[0].partition(".")
    namespace, _, kind = rest.partition(".")
    inside = kind == "svc" or kind.startswith("svc.")
    return (namespace, name) if namespace and (inside or not kind) else None


def ingress_of(cluster: Cluster) -> tuple[str, str]:
    """Of Knative: the Service through which requests from outside come."""
    told = (cluster.get("v1", "ConfigMap", KNATIVE, "config-network") or {}).get("data") or {}
    written = str(told.get("ingress-class") or told.get("ingress.class") or USUAL_INGRESS)
    found = INGRESSES.get(written.partition(".")[0])
    if found is None:
        raise NotFound(f"Knative's ingress class {written} is none that is known here", "set PILOTLIGHT_INGRESS")
    return found


def service_door(cluster: Cluster, namespace: str, name: str) -> Door:
    """An alias is followed to what it stands for."""
    service = cluster.get("v1", "Service", namespace, name)
    if service is None:
        raise NotFound(f"there is no Service {name} in {namespace}, which requests would come through")
    elsewhere = service_of(str(service["spec"].get("externalName") or ""))
    if elsewhere:
        return service_door(cluster, *elsewhere)
    return door_of(service)


def door_of(service: Object) -> Door:
    port = http_port(service["spec"].get("ports") or ())
    metadata = service["metadata"]
    addresses = tuple((address, int(port["port"])) for address in addresses_of(service))
    told = f"Service {metadata['name']} in {metadata['namespace']}"
    return Door(told, metadata["namespace"], metadata["name"], port.get("name", ""), addresses)


def addresses_of(service: Object) -> Sequence[str]:
    """Of load balancers first, then the one that only machines of the cluster reach."""
    spec = service["spec"]
    balanced = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    outside = [each.get("ip") or each.get("hostname") for each in balanced] + list(spec.get("externalIPs") or ())
    own = spec.get("clusterIP")
    return [str(each) for each in (*outside, *([own] if own and own != "None" else ())) if each]


def http_port(ports: Sequence[Object]) -> Object:
    """The one for plain HTTP: port 80, else by its name, else the first."""
    by_name = ("http", "http2", "http1")
    found = [each for each in ports if each["port"] == 80] or [each for each in ports if each.get("name") in by_name]
    return (found or list(ports))[0] if ports else {"port": 80}


def _route_of(cluster: Cluster, host: str, namespace: str) -> Object | None:
    found = cluster.list(GATEWAY_API, "HTTPRoute", namespace or None)
    return next((each for each in found if host in (each["spec"].get("hostnames") or ())), None)


def _gateway_of(cluster: Cluster, route: Object) -> Door:
    """What the route hangs on; for who may not look at that, the Service that it leads to."""
    parent = route["spec"]["parentRefs"][0]
    home = route["metadata"]["namespace"]
    where = (parent.get("namespace") or home, parent["name"])
    try:
        gateway = cluster.get(GATEWAY_API, "Gateway", *where)
    except Refused as refused:
        if refused.code != FORBIDDEN:
            raise
        backend = route["spec"]["rules"][0]["backendRefs"][0]
        return service_door(cluster, backend.get("namespace") or home, backend["name"])
    if gateway is None:
        raise NotFound(f"the Gateway {'/'.join(where)}, which the route {route['metadata']['name']} hangs on, is gone")
    return _gateway(cluster, gateway)


def _gateway(cluster: Cluster, gateway: Object) -> Door:
    """Its addresses as its status tells them, and the Service behind them for a port-forward."""
    metadata = gateway["metadata"]
    told = f"Gateway {metadata['name']} in {metadata['namespace']}"
    listeners = [each for each in gateway["spec"]["listeners"] if each["protocol"] == "HTTP"]
    port = int(listeners[0]["port"]) if listeners else 80
    own = tuple((str(each["value"]), port) for each in (gateway.get("status") or {}).get("addresses") or ())
    services = allowed(lambda: cluster.list("v1", "Service"), ())
    service = behind(services, metadata["name"], [address for address, _ in own], port)
    if service is None:
        return Door(told, "", "", "", own)
    door = door_of(service)
    name = next((each.get("name", "") for each in service["spec"]["ports"] if each["port"] == port), door.port_name)
    return Door(told, door.namespace, door.name, name, own or door.addresses)


def behind(services: Sequence[Object], gateway: str, addresses: Sequence[str], port: int) -> Object | None:
    """The Service that an implementation made for a Gateway: by its label, else by an address that both have."""
    open_here = [each for each in services if any(one["port"] == port for one in each["spec"].get("ports") or ())]
    for each in open_here:
        labels = each["metadata"].get("labels") or {}
        if gateway in [labels.get(owner) for owner in OWNERS]:
            return each
    return next((each for each in open_here if set(addresses_of(each)) & set(addresses)), None)
