"""Route from this machine to a service of a cluster, through its ingress; for readiness probes and `infer`.

`open_route` uses PILOTLIGHT_INGRESS, else an address of the ingress endpoint that accepts connections, else a
port-forward to one of its pods. The Host header has the service's host, since DNS may not resolve it here.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import DecodeError, json

from pilotlight.conversation import FAILURES, HttpClient
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import KubeApiError
from pilotlight.targets.kubernetes.doors import IngressEndpoint, find_endpoint
from pilotlight.targets.kubernetes.port_forward import PortForward

Json = Any
SETTING: Final = "PILOTLIGHT_INGRESS"
HINT: Final = f"set {SETTING} to a URL that reaches the cluster's ingress, such as http://127.0.0.1:8080"
CONNECT_S: Final = 3.0
PROBE_S: Final = 10.0


class NotPermitted(PlatformError):
    """This account may not read the ingress; the service itself may be ready."""


@dataclass(frozen=True, slots=True)
class OpenRoute:
    """Requests go to `url` with `headers`; `close` ends a port-forward."""

    url: str
    headers: Mapping[str, str]
    close: Callable[[], None]


def open_route(cluster: Cluster, status_url: str, host: str, namespace: str = "") -> OpenRoute:
    """Open a route to the service at `status_url`. `namespace` of its HTTPRoute; empty: any.

    Raises NotFound and NotPermitted.
    """
    url = urlsplit(status_url)
    headers = {"Host": host}
    if configured := os.environ.get(SETTING):
        if urlsplit(configured).scheme not in ("http", "https"):
            raise UsageError(f"{SETTING} = {configured}, must be a URL such as http://10.0.0.1")
        return OpenRoute(configured.rstrip("/") + url.path, headers, _nothing)
    if url.scheme == "https":
        return OpenRoute(status_url, {}, _nothing)
    try:
        return _connect(cluster, find_endpoint(cluster, host, namespace), headers, url.path)
    except (NotFound, KubeApiError) as error:
        # Without a readable or known ingress, DNS may still resolve the host.
        if can_connect(url.hostname or "", url.port or 80):
            return OpenRoute(status_url, headers, _nothing)
        kind = NotPermitted if isinstance(error, KubeApiError) else NotFound
        raise kind(f"no way to {status_url} is known: {error}", HINT) from error


def _connect(cluster: Cluster, endpoint: IngressEndpoint, headers: Mapping[str, str], path: str) -> OpenRoute:
    for address, port in endpoint.addresses:
        if can_connect(address, port):
            return OpenRoute(_url(address, port) + path, headers, _nothing)
    forward = open_port_forward(cluster, endpoint)
    return OpenRoute(_url("127.0.0.1", forward.port) + path, headers, forward.close)


def can_connect(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except OSError:
        return False
    return True


def probe(route: OpenRoute, path: str, timeout: float = PROBE_S) -> str:
    """Send a GET; return why it failed, empty: status 2xx."""
    client = HttpClient(route.url, timeout, route.headers)
    try:
        with client:
            response = client.request("GET", path)
    except FAILURES as error:
        return f"GET {path} through {client.address} gets no answer: {error or type(error).__name__}"
    if 200 <= response.status < 300:
        return ""
    message = reason_in(response.body) or response.reason
    return f"GET {path} answers {response.status}" + (f": {message}" if message else "")


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
    raise NotFound(f"{endpoint.description} has no address that answers here and no ready pod", HINT)


def _pods(cluster: Cluster, endpoint: IngressEndpoint) -> Iterator[tuple[str, str, int]]:
    if not endpoint.name:
        return
    selector = f"kubernetes.io/service-name={endpoint.name}"
    for endpoint_slice in cluster.list("discovery.k8s.io/v1", "EndpointSlice", endpoint.namespace, selector):
        port = next(
            (each["port"] for each in endpoint_slice.get("ports") or () if each.get("name", "") == endpoint.port_name),
            0,
        )
        yield from ((endpoint.namespace, pod, port) for pod in ready_pods(endpoint_slice) if port)


def ready_pods(endpoint_slice: Mapping[str, Json]) -> Sequence[str]:
    """Return the names of the ready pods of an EndpointSlice."""
    return [
        str(each["targetRef"]["name"])
        for each in endpoint_slice.get("endpoints") or ()
        if (each.get("targetRef") or {}).get("kind") == "Pod" and kinds.is_endpoint_ready(each)
    ]


def _url(address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}" if port != 80 else f"http://{host}"


def _nothing() -> None:
    return
