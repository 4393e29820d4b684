"""One service as an endpoint of a cloud: its specification from manifests, its health, its status. Pure."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, Protocol

from pilotlight.contract import ENV_CACHE_DIR, ENV_REVISION
from pilotlight.errors import PlatformError
from pilotlight.targets.local.manifests.interpret import interpret
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
from pilotlight.targets.local.scaling.types import Fixed, Kpa, Scaling
from pilotlight.targets.local.store.schema import StoredService
from pilotlight.targets.target import (
    NO_GATEWAY,
    Condition,
    Event,
    Key,
    ModelState,
    Phase,
    ReplicaStatus,
    RevisionStatus,
    ServiceRoute,
    ServiceStatus,
)

Json = Any
State = Literal["pending", "loading", "ready", "failed", "stopped", "gone", "unknown"]  # unknown: unreachable
NAME_LIMIT: Final = 36  # characters of a name at Lepton
STATUS_PATH: Final = "/status"  # of our own servers
# Variables of a pod that say nothing here: its volume for caches, and the revision, which would change the container.
_HIDDEN: Final = (ENV_CACHE_DIR, ENV_REVISION)
_PHASES: Final[Mapping[State, tuple[Phase, ModelState]]] = {
    "pending": ("Progressing", "Pending"), "loading": ("Progressing", "Loading"), "ready": ("Ready", "Loaded"),
    "unknown": ("Unknown", "Pending"), **dict.fromkeys(("failed", "stopped", "gone"), ("Failed", "FailedToLoad")),
}  # fmt: skip


class EndpointSpec(NamedTuple):
    """Endpoint of a service. With `per_minute` (requests to a replica) the cloud scales it between two bounds."""

    key: Key
    name: str  # of the endpoint or container in the cloud
    revision: str
    workload: str
    role: str
    mode: str
    container: ContainerSpec
    replicas: int
    max_replicas: int
    per_minute: float = 0.0
    generation: int = 0

    @property
    def options(self) -> Mapping[str, str]:
        return self.container.options


class EndpointState(NamedTuple):
    state: State
    url: str = ""
    reason: str = ""
    replicas: int = 1
    node: str = ""


class Endpoints(Protocol):
    """Endpoints of one cloud. Calls block and raise errors of `pilotlight.errors`."""

    name: str

    def check(self, endpoint: EndpointSpec) -> None:
        """Raise UsageError or PlatformError for what the cloud cannot run."""

    def put(self, endpoint: EndpointSpec, secrets: Mapping[str, str]) -> None:
        """Create or change it. `secrets` are values of the service's own Secret, by key."""

    def get(self, endpoint: EndpointSpec) -> EndpointState | None: ...
    def remove(self, endpoint: EndpointSpec) -> None:
        """Remove it, or begin to; one that does not exist is no error."""

    def logs(self, endpoint: EndpointSpec, tail: int, *, follow: bool) -> Iterator[str]: ...
    def events(self, endpoint: EndpointSpec) -> Sequence[Event]: ...
    def route(self, endpoint: EndpointSpec, url: str) -> AbstractContextManager[ServiceRoute]: ...


def endpoint_of(
    manifests: Sequence[Mapping[str, Json]], overrides: Mapping[str, Mapping[str, Json]], home_id: str
) -> EndpointSpec:
    """Return the endpoint of a service. Raise PlatformError for what no container alone can do."""
    spec = interpret(manifests, overrides)
    key = (spec.namespace, spec.name)
    if len(spec.workloads) != 1 or spec.access:
        what = f"access rules ({min(spec.access)})" if spec.access else f"{len(spec.workloads)} workloads"
        raise PlatformError(f"{'/'.join(key)} has {what}, but {NO_GATEWAY}", "use another target")
    (workload,) = spec.workloads
    revision, container = workload.revision, workload.revision.container
    if container.fetches:
        problem = f"{container.fetches[0].uri} is fetched by an init container, which {spec.target} does not support"
        raise PlatformError(problem, "use the Pilotlight predictor, which downloads models itself")
    if container.replica_env:
        raise PlatformError(f"env {container.replica_env[0]}: replicas of {spec.target} do not know their name")
    container = replace(container, env={name: value for name, value in container.env.items() if name not in _HIDDEN})
    return EndpointSpec(
        key, endpoint_name(key, home_id), revision.name, workload.name, workload.role, workload.mode, container,
        *_replicas(revision.scaling),
    )  # fmt: skip


def endpoint_name(key: Key, home_id: str) -> str:
    """Return a name that begins with a letter and is no other platform's: accounts of clouds are shared."""
    namespace, name = key
    words = name if namespace == "default" else f"{namespace}-{name}"
    digest = hashlib.sha256(f"{home_id} {namespace}/{name}".encode()).hexdigest()[:8]
    plain = re.sub(r"^(?![a-z])", "s-", re.sub(r"[^a-z0-9-]", "-", words))
    return f"{plain[: NAME_LIMIT - 9].rstrip('-')}-{digest}"


def _replicas(scaling: Scaling) -> tuple[int, int, float]:
    """Return the least and the most replicas, and the requests a minute that each gets; 0: it is not scaled by them."""
    if isinstance(scaling, Fixed):
        return scaling.replicas, scaling.replicas, 0.0
    if isinstance(scaling, Kpa):
        most = max(scaling.min_scale, scaling.max_scale)
        rate = scaling.target * scaling.utilization if scaling.metric == "rps" else 0.0
        return scaling.min_scale, most, rate * 60
    rate = next((metric.target for metric in scaling.metrics if metric.name == "rps"), 0.0)
    return scaling.min_replicas, max(scaling.min_replicas, scaling.max_replicas), rate * 60


def health_path(container: ContainerSpec) -> str:
    """Return the path that tells whether it is ready; empty: that it accepts connections says it."""
    if container.own_health:
        return STATUS_PATH
    probe = container.readiness or container.startup
    return probe.path if probe and probe.kind == "http" else ""


def read_health(container: ContainerSpec, status: int, body: bytes) -> tuple[State, str]:
    """Return state and reason of a running container, by its response to `health_path`; status 0: none came."""
    if not container.own_health or status != 200:
        reason = f"{health_path(container)} returned {status}" if status else "it does not respond yet"
        return ("ready", "") if 200 <= status < 400 else ("loading", reason)
    try:
        document = json.loads(body)
        state, reason = str(document["state"]), str(document.get("reason") or "")
    except (ValueError, KeyError, TypeError):
        return "loading", f"{STATUS_PATH} returned something unexpected"
    return ("ready", "") if state == "ready" else ("failed" if state == "failed" else "loading", reason)


def status_of(
    endpoint: EndpointSpec, seen: EndpointState, target: str, stored: StoredService | None = None
) -> ServiceStatus:
    """Return the status; `stored` is the service, None in a dry run."""
    phase, model_state = _PHASES[seen.state]
    if stored is not None and stored.deleting:
        phase = "Stopping"
    ready = seen.replicas if seen.state == "ready" else 0
    waits = seen.state in ("pending", "loading")
    replica = ReplicaStatus(endpoint.name, "starting" if seen.state == "loading" else seen.state, seen.node,
        endpoint.name, seen.reason)  # fmt: skip
    revision = RevisionStatus(
        endpoint.revision, endpoint.workload, endpoint.role, 100, ready=ready, desired=seen.replicas,
        starting=seen.replicas if waits else 0, model_state=model_state, reason=seen.reason, url=seen.url,
        replicas=(replica,),
    )  # fmt: skip
    condition = Condition(
        "Ready", "True" if phase == "Ready" else "Unknown" if phase == "Unknown" else "False", phase, seen.reason
    )
    return ServiceStatus(
        *endpoint.key, endpoint.generation, phase, seen.url, mode=endpoint.mode, target=target, message=seen.reason,
        urls={"http": seen.url} if seen.url else {}, conditions=(condition,), revisions=(revision,),
        overrides=stored.overrides if stored else {},
    )  # fmt: skip
