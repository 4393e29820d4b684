"""How this machine sends a real request to a service of a cluster: through the ingress in front of it, whoever that is.

`reach` finds the way in: what PILOTLIGHT_INGRESS says, else the Service of the ingress by an address that answers, else
a port-forward to one of its pods. The Host header carries the service's name, since DNS may not know it here.
Readiness and `infer` ask by what it returns.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import DecodeError, json

from pilotlight.conversation import FAILURES, Conversation
from pilotlight.errors import NotFound, PlatformError, UsageError
from pilotlight.targets.kubernetes import kinds
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import Refused
from pilotlight.targets.kubernetes.doors import Door, door_to
from pilotlight.targets.kubernetes.port_forward import PortForward

Json = Any
SETTING: Final = "PILOTLIGHT_INGRESS"
HINT: Final = f"set {SETTING} to a URL that reaches the cluster's ingress, such as http://127.0.0.1:8080"
CONNECT_S: Final = 3.0
PROBE_S: Final = 10.0


class NoRight(PlatformError):
    """The service may serve well: it is this account that may not look at what leads to it."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Requests go to `url` with `headers`; `close` ends what was opened for them."""

    url: str
    headers: Mapping[str, str]
    close: Callable[[], None]


def reach(cluster: Cluster, status_url: str, host: str, namespace: str = "") -> Reach:
    """The way to the service whose address is `status_url`. `namespace` is where its route lies; empty: anywhere."""
    url = urlsplit(status_url)
    headers = {"Host": host}
    if given := os.environ.get(SETTING):
        if urlsplit(given).scheme not in ("http", "https"):
            raise UsageError(f"{SETTING} = {given}, must be a URL such as http://10.0.0.1")
        return Reach(given.rstrip("/") + url.path, headers, _nothing)
    if url.scheme == "https":
        return Reach(status_url, {}, _nothing)
    try:
        return _through(cluster, door_to(cluster, host, namespace), headers, url.path)
    except (NotFound, Refused) as error:
        # Who may not look at the ingress, or has one that we do not know, can still have its name in DNS.
        if connects(url.hostname or "", url.port or 80):
            return Reach(status_url, headers, _nothing)
        kind = NoRight if isinstance(error, Refused) else NotFound
        raise kind(f"no way to {status_url} is known: {error}", HINT) from error


def _through(cluster: Cluster, door: Door, headers: Mapping[str, str], path: str) -> Reach:
    for address, port in door.addresses:
        if connects(address, port):
            return Reach(_url(address, port) + path, headers, _nothing)
    forward = forwarded(cluster, door)
    return Reach(_url("127.0.0.1", forward.port) + path, headers, forward.close)


def connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except OSError:
        return False
    return True


def probe(way: Reach, path: str, timeout: float = PROBE_S) -> str:
    """One GET: empty when it was answered well, else a sentence that says what came instead."""
    conversation = Conversation(way.url, timeout, way.headers)
    try:
        with conversation:
            answer = conversation.ask("GET", path)
    except FAILURES as error:
        return f"GET {path} through {conversation.address} gets no answer: {error or type(error).__name__}"
    if 200 <= answer.status < 300:
        return ""
    told = reason_in(answer.body) or answer.reason
    return f"GET {path} answers {answer.status}" + (f": {told}" if told else "")


def reason_in(body: bytes) -> str:
    """What an error's body says: the text of JSON as servers of this field write it, else its first line."""
    try:
        told = json.decode(body)
    except DecodeError:
        return next(iter(body.decode(errors="replace").strip().splitlines()), "")[:200]
    while isinstance(told, dict):
        told = next((told[key] for key in ("error", "message", "reason", "detail") if told.get(key)), "")
    return str(told)[:200] if told else ""


def forwarded(cluster: Cluster, door: Door) -> PortForward:
    """To a ready pod behind it; raises NotFound where there is none."""
    for namespace, pod, port in _pods(cluster, door):
        forward = PortForward(cluster.connection, namespace, pod, port)
        try:
            forward.try_once()
        except PlatformError as error:
            forward.close()
            raise NoRight(f"{door.told} cannot be reached from here: {error}", HINT) from error
        return forward
    raise NotFound(f"{door.told} has no address that answers here and no ready pod", HINT)


def _pods(cluster: Cluster, door: Door) -> Iterator[tuple[str, str, int]]:
    if not door.name:
        return
    selector = f"kubernetes.io/service-name={door.name}"
    for piece in cluster.list("discovery.k8s.io/v1", "EndpointSlice", door.namespace, selector):
        port = next((each["port"] for each in piece.get("ports") or () if each.get("name", "") == door.port_name), 0)
        yield from ((door.namespace, pod, port) for pod in ready_pods(piece) if port)


def ready_pods(piece: Mapping[str, Json]) -> Sequence[str]:
    """Of an EndpointSlice."""
    return [
        str(each["targetRef"]["name"])
        for each in piece.get("endpoints") or ()
        if (each.get("targetRef") or {}).get("kind") == "Pod" and kinds.takes_requests(each)
    ]


def _url(address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}" if port != 80 else f"http://{host}"


def _nothing() -> None:
    return
