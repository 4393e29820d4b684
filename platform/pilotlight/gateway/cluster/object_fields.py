"""Fields of cluster objects that the gateway uses. Pure: an object in, a few fields out, None if irrelevant."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from pilotlight.contract import ENV_SETTINGS_PREFIX
from pilotlight.errors import PlatformError
from pilotlight.gateway.routing_table import Replica, RouteAdapter
from pilotlight.k8s import names, quantities
from pilotlight.k8s.adapters import adapters_of

Json = Any
Shares = tuple[tuple[str, int], ...]  # workload, weight
SELECTOR: Final = names.LABEL_SERVICE  # on all our objects; EndpointSlices have the labels of their Service
SERVICE_NAME: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io")
EXIT_TIMEOUT: Final = f"{ENV_SETTINGS_PREFIX}EXIT_TIMEOUT_SECS"
DEADLINE_S: Final = 600.0  # default of progressDeadlineSeconds
KNATIVE_DEADLINE: Final = "serving.knative.dev/progress-deadline"
SERVING_PORTS: Final = ("http1", "http", "h2c")
OTHER_PORTS: Final = ("metrics", "grpc")


class EntryService(Struct, frozen=True):
    """`direct`: clients bypass the gateway, but requests that were sent here before the change must still be routed."""

    service: str
    shares: Shares
    direct: bool = False


class Workload(Struct, frozen=True):
    revision: str
    deadline_s: float  # maximum time of a start
    timeout_s: float  # of a response; 0: not set
    access: dict[str, str]
    starting: bool = False  # has replicas, none of them ready
    models: tuple[str, ...] = ()  # names of its model behind /v1
    adapters: tuple[RouteAdapter, ...] = ()


class KnativeRoute(Struct, frozen=True):
    """Knative Route of a service; `tags` has the revision of each tag, "" the only one that has traffic."""

    service: str
    workload: str
    authority: str  # host in the cluster, and port unless it is 80; empty: it is reachable by TLS only
    tags: tuple[tuple[str, str], ...] = ()


class RouteHosts(Struct, frozen=True):
    service: str
    hosts: tuple[str, ...]
    since: str  # creation, RFC 3339: the oldest route owns a host
    timeout_s: float = 0.0
    shares: Shares = ()  # of its backends


class EndpointSlice(Struct, frozen=True):
    """Ready endpoints of one EndpointSlice."""

    service: str
    replicas: tuple[Replica, ...]


def entry_service(document: Json, gateway: str) -> EntryService | None:
    """Read a Service: an ExternalName of the gateway has the traffic shares of a service's workloads.

    `gateway` is our own Service as `name.namespace`.
    """
    spec, metadata = document.get("spec") or {}, document["metadata"]
    service, workload = _service(metadata), (spec.get("selector") or {}).get(names.LABEL_WORKLOAD)
    if spec.get("type") != "ExternalName":
        direct = workload and metadata["name"] == names.entry_service(service)
        return EntryService(service, ((str(workload), 100),), direct=True) if direct else None
    target = str(spec.get("externalName") or "").rstrip(".")
    written = str((metadata.get("annotations") or {}).get(names.ANNOTATION_SHARES) or "")
    pairs = [part.strip().partition("=") for part in written.split(",") if part.strip()]
    valid = all(name and share.isdecimal() for name, _, share in pairs)
    shares = tuple((name, int(share)) for name, _, share in pairs) if valid else ()
    return EntryService(service, shares) if shares and f"{target}.".startswith(f"{gateway}.svc.") else None


def workload(document: Json) -> Workload:
    """Read a Deployment, StatefulSet, LeaderWorkerSet or Knative Service."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    groups = spec.get("leaderWorkerTemplate") or {}
    template = groups.get("leaderTemplate") or groups.get("workerTemplate") or spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    variables = (variable for container in containers for variable in container.get("env") or ())
    annotations = {**((template.get("metadata") or {}).get("annotations") or {}), **(metadata.get("annotations") or {})}
    return Workload(
        str(labels.get(names.LABEL_REVISION) or ""),
        float(spec.get("progressDeadlineSeconds") or 0)
        or quantities.unsigned_duration(str(annotations.get(KNATIVE_DEADLINE) or ""))
        or DEADLINE_S,
        next((_seconds(str(each.get("value"))) for each in variables if each.get("name") == EXIT_TIMEOUT), 0.0),
        {key: str(value) for key, value in annotations.items() if key.startswith(names.ACCESS_PREFIXES)},
        bool(spec.get("replicas")) and not (document.get("status") or {}).get("readyReplicas"),
        names.model_names({key: str(value) for key, value in (metadata.get("annotations") or {}).items()}),
        _adapters(document),
    )


def _adapters(document: Json) -> tuple[RouteAdapter, ...]:
    """Return the adapters of a workload; none if another program wrote what cannot be read."""
    with suppress(PlatformError):
        return tuple(
            RouteAdapter(each.name, each.model, each.fields, each.percent, each.base_fields)
            for each in adapters_of(document)
        )
    return ()


def _seconds(value: str) -> float:
    """Return the value of a setting in seconds; 0 if it is not a number."""
    return float(value) if re.fullmatch(r"\d+(?:\.\d+)?", value) else 0.0


def route_hosts(document: Json) -> RouteHosts:
    """Read an HTTPRoute: the public hosts of a service, once accepted by a Gateway."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    rules = spec.get("rules") or ()
    timeouts = [
        quantities.unsigned_duration(str((rule.get("timeouts") or {}).get("request") or "")) or 0.0 for rule in rules
    ]
    backends = [backend for rule in rules[:1] for backend in rule.get("backendRefs") or ()]
    claimed = spec.get("hostnames") or () if _accepted(document) else ()
    return RouteHosts(
        _service(metadata), tuple(str(host).lower() for host in claimed),
        str(metadata.get("creationTimestamp") or ""), max(timeouts, default=0.0),
        tuple((str(backend["name"]), int(backend.get("weight", 1))) for backend in backends),
    )  # fmt: skip


def knative_route(document: Json) -> KnativeRoute | None:
    """Read the Knative Route that has the name of a service, once it has an address."""
    metadata, status = document["metadata"], document.get("status") or {}
    service, address = _service(metadata), urlsplit(str((status.get("address") or {}).get("url") or ""))
    if not address.hostname or metadata["name"] != names.entry_service(service):
        return None
    targets = [
        (str(each.get("tag") or ""), str(each.get("revisionName") or "")) for each in status.get("traffic") or ()
    ]
    tags = tuple((tag, revision) for tag, revision in targets if tag or len(targets) == 1)
    workload = str((metadata.get("labels") or {}).get(names.LABEL_WORKLOAD) or "")
    return KnativeRoute(service, workload, address.netloc if address.scheme == "http" else "", tags)


def _accepted(route: Json) -> bool:
    """Whether a Gateway of its spec accepted the route: it may claim any host, but without one it gets no requests."""
    home = str(route["metadata"].get("namespace") or "")
    wanted = {_gateway(parent, home) for parent in (route.get("spec") or {}).get("parentRefs") or ()}
    conditions = [
        condition
        for parent in (route.get("status") or {}).get("parents") or ()
        if _gateway(parent.get("parentRef") or {}, home) in wanted
        for condition in parent.get("conditions") or ()
    ]
    return any((each.get("type"), each.get("status")) == ("Accepted", "True") for each in conditions)


def _gateway(parent: Json, home: str) -> tuple[str, str, str]:
    return str(parent.get("kind") or "Gateway"), str(parent.get("namespace") or home), str(parent.get("name") or "")


def _by_controller(document: Json) -> bool:
    """Whether Kubernetes' own controller wrote an EndpointSlice: others may name any address."""
    key, value = MANAGED_BY
    return (document["metadata"].get("labels") or {}).get(key) == value


def slice_of(document: Json) -> EndpointSlice | None:
    if not _by_controller(document):
        return None
    service = str((document["metadata"].get("labels") or {}).get(SERVICE_NAME) or "")
    port = _serving(document.get("ports") or ())
    if not service or not port or document.get("addressType") not in ("IPv4", "IPv6"):
        return None
    return EndpointSlice(service, tuple(_ready(document.get("endpoints") or (), port)))


def _serving(ports: Json) -> int:
    """Return the HTTP port by name, else the first other one: custom workloads may name it freely."""
    named = {str(port.get("name") or ""): int(port.get("port") or 0) for port in ports}
    candidates = [
        *(name for name in SERVING_PORTS if name in named),
        *(name for name in named if name not in OTHER_PORTS),
    ]
    return named[candidates[0]] if candidates else 0


def _ready(endpoints: Json, port: int) -> Iterator[Replica]:
    """Yield the ready endpoints; a terminating one gets no new requests."""
    for endpoint in endpoints:
        conditions = endpoint.get("conditions") or {}
        if conditions.get("ready") is False or conditions.get("terminating"):
            continue
        host = str(endpoint["addresses"][0])
        yield Replica(str((endpoint.get("targetRef") or {}).get("name") or host), port, host)


def pod_addresses(document: Json) -> tuple[str, ...]:
    """Return all addresses of an EndpointSlice of our headless Service: unready peers report loads too."""
    endpoints = (document.get("endpoints") or ()) if _by_controller(document) else ()
    return tuple(str(address) for endpoint in endpoints for address in endpoint["addresses"])


def _service(metadata: Mapping[str, Json]) -> str:
    return str((metadata.get("labels") or {}).get(names.LABEL_SERVICE) or "")
