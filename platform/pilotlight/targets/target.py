"""Target interface and its values. `platformctl` and the API use targets only through it.

A target does not plan: it applies a `Release` (the document and its manifests) and returns the live objects as
manifests, which are the `current` of the next plan.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from pilotlight.errors import NotFound, UsageError
from pilotlight.k8s.manifest import Manifest

Json = Any
Key = tuple[str, str]  # namespace, name

HEADING = "==> "  # before the lines of another replica
NO_GATEWAY = "it is not behind the Pilotlight gateway"  # why a target of a cloud refuses what needs one
STATUS_READ = "the control process reads the status of its replica"  # a step of ours before Ready

Phase = Literal["Ready", "Standby", "Parked", "Progressing", "Degraded", "Failed", "Stopping", "Unknown"]
ModelState = Literal["Pending", "Standby", "Parked", "Loading", "Loaded", "FailedToLoad"]


class Release(Struct, frozen=True):
    """One deploy of one service. `document` is the user's text, stored for rollbacks and later plans."""

    namespace: str
    name: str
    document: str
    manifests: tuple[Mapping[str, Json], ...]
    catalogue: tuple[str, ...] = ()  # texts of the other documents that the plan used
    expected: int | None = None  # generation that the plan is based on; None: any
    note: str = ""  # why: deploy, rollback to …, canary promoted
    generation: int = 0  # number of the deploy, counted by the target
    at: str = ""  # when it was applied; UTC, RFC 3339
    failed: tuple[str, ...] = ()  # its revisions that failed to start, as far as recorded
    by: str = ""  # user who deployed it; empty: unknown, or the platform itself


class Condition(Struct, frozen=True):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    since: str = ""  # UTC, RFC 3339
    severity: str = ""  # Info: no fault; empty: an error


class ReplicaStatus(Struct, frozen=True):
    name: str
    state: str  # of a pod: ready, or its phase in lower case
    node: str = ""  # node or instance that runs it; empty: the machine of the control process, or none yet
    handle: str = ""  # name of its container or endpoint, or id of its job; empty: a process or a pod
    reason: str = ""  # why it is not ready
    gpus: tuple[str, ...] = ()  # of this machine that it holds, or held before it was parked
    gpu_memory: int = 0  # bytes of each that are reserved for it; 0: all
    forked: bool = False  # by a pilot light


class RevisionStatus(Struct, frozen=True):
    name: str
    workload: str
    role: str
    percent: int
    tags: tuple[str, ...] = ()
    ready: int = 0
    starting: int = 0
    desired: int = 0
    model_state: ModelState = "Pending"
    reason: str = ""  # why it is not ready
    progress: Mapping[str, Json] = {}  # bytes and total of a running download or load
    p50_ms: float | None = None
    p99_ms: float | None = None
    error_percent: float | None = None
    requests: int = 0  # within the last five minutes, as the three above
    cold_starts: int = 0
    decision: str = ""  # last scaling decision with its reason
    decided_at: str = ""
    url: str = ""  # of this revision alone
    cold_start: Mapping[str, float] = {}  # seconds by phase of its latest start
    per_second: float | None = None  # requests, over the last seconds
    model_digest: str = ""  # of the model that it serves; empty: not pinned to its content
    model_bytes: int = 0
    unpinned: tuple[str, ...] = ()  # model URIs that a replica fetches without a pin
    retry_in_s: float | None = None  # until the next start, in the backoff after a failure
    verified: bool = True  # false: has been ready, and its model has not answered a warm-up or a request yet
    failure: str = ""  # why its last start failed or its last replica crashed; empty once it is ready
    replicas: tuple[ReplicaStatus, ...] = ()
    waiting: int = 0  # requests that the gateway holds until a replica takes them


class ServiceStatus(Struct, frozen=True):
    namespace: str
    name: str
    generation: int
    phase: Phase
    url: str
    mode: str = ""
    urls: Mapping[str, str] = {}  # http, https, port, grpc or grpcs (with TLS), host; of a cluster also load_balancer
    component_urls: Mapping[str, str] = {}  # own ones of components, by workload
    conditions: tuple[Condition, ...] = ()
    revisions: tuple[RevisionStatus, ...] = ()  # newest first
    message: str = ""  # one sentence if the phase is not Ready, or it is unverified
    overrides: Mapping[str, Mapping[str, Json]] = {}
    warnings: tuple[str, ...] = ()
    verified: bool = True  # false: a model that gets requests has not answered a warm-up or a request yet
    rolled_back: str = ""  # why the release before this one was taken back automatically
    target: str = "local"  # name of the target that it runs on
    adapters: tuple[RevisionStatus, ...] = ()  # adapters in running engines, under the engine's names


class Event(Struct, frozen=True):
    at: str
    namespace: str
    service: str
    object: str  # Revision/iris-predictor-1f3a9c07, Replica/…
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    number: int = 0  # increasing; `follow` continues after it


class Share(Struct, frozen=True):
    revision: str
    percent: int
    tag: str = ""


class ServiceRoute(Struct, frozen=True):
    """Route from this machine to a service: URL prefix and headers of requests."""

    url: str
    headers: Mapping[str, str] = {}


class CanaryRecord(Struct, frozen=True):
    """Stored canary state of a service. `version` changes with every write."""

    namespace: str
    name: str
    state: str  # CanaryHistory as JSON
    version: str

    @property
    def key(self) -> Key:
        return self.namespace, self.name


class Sample(Struct, frozen=True):
    """One element of a query result; `at` is the Unix time of its newest measurement, 0 if unknown."""

    labels: Mapping[str, str]
    value: float
    at: float = 0.0


class SampleBody(Struct, frozen=True):
    """A sample as JSON. Its value is a string, since JSON has no NaN."""

    labels: dict[str, str]
    value: str
    at: float


class UsageRow(Struct, frozen=True):
    """Tokens of a day (UTC); `team` is that of the caller, empty if it has none."""

    day: str
    namespace: str
    service: str
    model: str
    caller: str
    requests: int
    prompt: int
    cached: int  # of `prompt`
    completion: int
    team: str = ""


class Finding(Struct, frozen=True):
    """Result of one check of `platformctl doctor`."""

    level: Literal["ok", "warn", "fail"]
    check: str
    message: str
    fix: str = ""


class LogLine(Struct, frozen=True):
    replica: str
    line: str


def with_headings(lines: Iterable[LogLine]) -> Iterator[str]:
    """Yield the lines, with a heading like `tail` where another replica's begin."""
    last = ""
    for line in lines:
        if last and line.replica != last:
            yield f"{HEADING}{line.replica} <=="
        last = line.replica
        yield line.line


class ServiceVerbs(Protocol):
    """Verbs of a target that the control API serves. They return before the rollout: callers poll `status`."""

    def live(self, key: Key) -> list[Manifest]:
        """Return the live objects of a service, with `status` and override annotations; empty: no such service."""

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus: ...
    def status(self, key: Key) -> ServiceStatus: ...
    def list(self, namespace: str | None) -> Sequence[ServiceStatus]: ...
    def releases(self, key: Key) -> Sequence[Release]:
        """Return the stored releases, newest first."""

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        """Override `minReplicas` and `maxReplicas`, also for later deploys; None: remove the override."""

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus: ...
    def set_secret(self, key: Key, values: Mapping[str, str]) -> None:
        """Set the values of a service's own Secret, which has its name, before it is applied.

        They are in no release and are removed with the service; only a cluster stores them.
        """

    def delete(self, key: Key) -> str | None:
        """Delete a service; return what a user should know, if anything."""

    def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        """Return the canaries of all services that have had one."""

    def canary(self, key: Key) -> CanaryRecord | None: ...
    def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        """Replace the record with that version ("": none yet). Raises Conflict if it has changed since."""


class Target(ServiceVerbs, Protocol):
    """Deployment target. Raises errors of `pilotlight.errors` only. Calls block."""

    name: str
    poll_s: float  # polling interval
    embedded: bool  # a control process of this machine runs it, with its gateway, canaries and snapshots of models

    def capabilities(self) -> Mapping[str, Json]:
        """Return the target's capabilities, by the names of plan.types.Capabilities; empty: the defaults."""

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Mapping[str, Json]]], Sequence[str]]:
        """Return the target's own runtimes, models and accelerators with their origins; and warnings."""

    def open_route(self, status: ServiceStatus) -> AbstractContextManager[ServiceRoute]:
        """Open a route to the service, for the time of its requests: it may be a tunnel."""

    def probe(self, status: ServiceStatus) -> str:
        """Send a real request as a client would; return why it failed, empty: it did not."""

    def record_status(self, status: ServiceStatus) -> None:
        """Record an observed status in the target, for other clients. Never fails."""

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]: ...
    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]: ...
    def query(self, promql: str) -> Sequence[Sample]:
        """Evaluate PromQL on the metrics of services. Raises PlatformError."""


def service_argument(key: Key) -> str:
    """Return the service as an argument of a command: NAME or NAMESPACE/NAME."""
    namespace, name = key
    return name if namespace == "default" else f"{namespace}/{name}"


def find_revision(status: ServiceStatus, revision: str) -> RevisionStatus | None:
    """Return the status of a revision, also under the name (`NAME-…`) that a target derives for manual overrides."""
    exact = [each for each in (*status.revisions, *status.adapters) if each.name == revision]
    derived = [each for each in status.revisions if each.name.startswith(f"{revision}-")]
    return next(iter([*exact, *derived]), None)


def check_shares(shares: Sequence[Share], revisions: Collection[str]) -> None:
    """Raise NotFound for a share of another revision, UsageError unless the shares add up to 100."""
    unknown = [share.revision for share in shares if share.revision not in revisions]
    if unknown:
        raise NotFound(f"unknown revision {', '.join(unknown)}; known: {', '.join(sorted(revisions))}")
    if shares and (total := sum(share.percent for share in shares)) != 100:
        raise UsageError(f"the percentages add up to {total}, must be 100")
