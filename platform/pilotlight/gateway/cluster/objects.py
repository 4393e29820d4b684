"""What the gateway reads of the cluster's objects. Pure: an object in, a few fields out, None where it means nothing.

Service         leads to the gateway by its external name: a service, and the shares of its workloads
Deployment …    a workload: its time limits and who may ask
HTTPRoute       public hosts of a service, once a Gateway has accepted it
EndpointSlice   the replicas of a workload that are ready
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from pilotlight import names
from pilotlight.contract import ENV_SETTINGS_PREFIX
from pilotlight.gateway.table import Replica

Json = Any
Shares = tuple[tuple[str, int], ...]  # workload, weight
SELECTOR: Final = names.LABEL_SERVICE  # every object of ours has it, and slices have the labels of their Service
SERVICE_NAME: Final = "kubernetes.io/service-name"
EXIT_TIMEOUT: Final = f"{ENV_SETTINGS_PREFIX}EXIT_TIMEOUT_SECS"
DEADLINE_S: Final = 600.0  # what Kubernetes itself gives a Deployment to come up
SERVING_PORTS: Final = ("http1", "http", "h2c")
OTHER_PORTS: Final = ("metrics", "grpc")


class Address(Struct, frozen=True):
    """`straight`: its clients pass us by, but those who were sent here before that changed must find it too."""

    service: str
    shares: Shares
    straight: bool = False


class Workload(Struct, frozen=True):
    revision: str
    deadline_s: float  # for a start
    timeout_s: float  # for an answer; 0: not said
    access: dict[str, str]


class Hosts(Struct, frozen=True):
    service: str
    hosts: tuple[str, ...]
    since: str  # creation, as RFC 3339: whoever was first keeps a host
    timeout_s: float = 0.0
    shares: Shares = ()  # of whatever its backends are


class Slice(Struct, frozen=True):
    """Some of the endpoints behind one Service."""

    service: str
    replicas: tuple[Replica, ...]


def address(found: Json, gateway: str) -> Address | None:
    """`gateway` is our own Service as `name.namespace`."""
    spec, metadata = found.get("spec") or {}, found["metadata"]
    service, workload = _service(metadata), (spec.get("selector") or {}).get(names.LABEL_WORKLOAD)
    if spec.get("type") != "ExternalName":
        straight = workload and metadata["name"] == names.entry_service(service)
        return Address(service, ((str(workload), 100),), straight=True) if straight else None
    target = str(spec.get("externalName") or "").rstrip(".")
    shares = _shares(str((metadata.get("annotations") or {}).get(names.ANNOTATION_SHARES) or ""))
    return Address(service, shares) if shares and f"{target}.".startswith(f"{gateway}.svc.") else None


def _shares(written: str) -> Shares:
    pairs = [part.strip().partition("=") for part in written.split(",") if part.strip()]
    if not all(name and share.isdecimal() for name, _, share in pairs):
        return ()
    return tuple((name, int(share)) for name, _, share in pairs)


def workload(found: Json) -> Workload:
    metadata, spec = found["metadata"], found.get("spec") or {}
    groups = spec.get("leaderWorkerTemplate") or {}
    template = groups.get("leaderTemplate") or groups.get("workerTemplate") or spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    annotations = {**((template.get("metadata") or {}).get("annotations") or {}), **(metadata.get("annotations") or {})}
    return Workload(
        str(labels.get(names.LABEL_REVISION) or ""),
        float(spec.get("progressDeadlineSeconds") or DEADLINE_S),
        _timeout(template),
        {key: str(value) for key, value in annotations.items() if key.startswith(names.ACCESS_PREFIXES)},
    )


def _timeout(template: Json) -> float:
    for container in (template.get("spec") or {}).get("containers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == EXIT_TIMEOUT:
                return _seconds(f"{variable.get('value')}s")
    return 0.0


def hosts(found: Json) -> Hosts:
    metadata, spec = found["metadata"], found.get("spec") or {}
    rules = spec.get("rules") or ()
    waits = [_seconds(str((rule.get("timeouts") or {}).get("request") or "")) for rule in rules]
    backends = [backend for rule in rules[:1] for backend in rule.get("backendRefs") or ()]
    claimed = spec.get("hostnames") or () if _accepted(found) else ()
    return Hosts(
        _service(metadata), tuple(str(host).lower() for host in claimed),
        str(metadata.get("creationTimestamp") or ""), max(waits, default=0.0),
        tuple((str(backend["name"]), int(backend.get("weight", 1))) for backend in backends),
    )  # fmt: skip


def _accepted(route: Json) -> bool:
    """By a Gateway. Anybody may write any host into a route, but one that no Gateway took brings no request here."""
    conditions = [
        condition
        for parent in (route.get("status") or {}).get("parents") or ()
        for condition in parent.get("conditions") or ()
    ]
    return any((each.get("type"), each.get("status")) == ("Accepted", "True") for each in conditions)


def _seconds(written: str) -> float:
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)s", written)
    return float(matched[1]) if matched else 0.0


def slice_of(found: Json) -> Slice | None:
    service = str((found["metadata"].get("labels") or {}).get(SERVICE_NAME) or "")
    port = _serving(found.get("ports") or ())
    if not service or not port or found.get("addressType") not in ("IPv4", "IPv6"):
        return None
    return Slice(service, tuple(_ready(found.get("endpoints") or (), port)))


def _serving(ports: Json) -> int:
    """The first by name; a workload of somebody else's making may call it anything."""
    named = {str(port.get("name") or ""): int(port.get("port") or 0) for port in ports}
    wanted = [*(name for name in SERVING_PORTS if name in named), *(name for name in named if name not in OTHER_PORTS)]
    return named[wanted[0]] if wanted else 0


def _ready(endpoints: Json, port: int) -> Iterator[Replica]:
    """One that ends may still serve what it has; it gets nothing more."""
    for endpoint in endpoints:
        conditions = endpoint.get("conditions") or {}
        if conditions.get("ready") is False or conditions.get("terminating"):
            continue
        host = str(endpoint["addresses"][0])
        yield Replica(str((endpoint.get("targetRef") or {}).get("name") or host), port, host)


def pod_addresses(found: Json) -> tuple[str, ...]:
    """Of a slice of our own headless Service: everybody who is there, ready or leaving, has counts to tell."""
    return tuple(str(address) for endpoint in found.get("endpoints") or () for address in endpoint["addresses"])


def _service(metadata: Mapping[str, Json]) -> str:
    return str((metadata.get("labels") or {}).get(names.LABEL_SERVICE) or "")
