"""What every target can do with manifests, and what it tells. `platformctl` and the API know targets only through this.

A target never plans: it takes a `Release` (the document and the manifests made from it) and shows what runs as
manifests again, from which the next plan takes its `current`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from pilotlight.manifests import Manifest

Json = Any
Key = tuple[str, str]  # namespace, name

Phase = Literal["Ready", "Standby", "Parked", "Progressing", "Degraded", "Failed", "Stopping"]
ModelState = Literal["Pending", "Standby", "Parked", "Loading", "Loaded", "FailedToLoad"]


class Release(Struct, frozen=True):
    """One deploy of one service. `document` is the user's text, kept for rollback and for later plans."""

    namespace: str
    name: str
    document: str
    manifests: tuple[Mapping[str, Json], ...]
    catalogue: tuple[str, ...] = ()  # texts of the documents that the plan was made with beside it
    expected: int | None = None  # the generation that the plan was made from; None: any
    note: str = ""  # why: deploy, rollback to …, canary promoted
    generation: int = 0  # which deploy of the service it was; the target counts them
    at: str = ""  # when it was applied; UTC, RFC 3339
    failed: tuple[str, ...] = ()  # revisions of it that were seen not to start, as far as the target remembers


class Condition(Struct, frozen=True):
    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    since: str = ""  # UTC, RFC 3339


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
    requests: int = 0  # of the last five minutes, which the three above are over
    cold_starts: int = 0
    decision: str = ""  # the last scale decision with its reason
    decided_at: str = ""
    url: str = ""  # reaches this revision alone
    cold_start: Mapping[str, float] = {}  # seconds by phase of its latest start
    per_second: float | None = None  # requests, over the last seconds


class ServiceStatus(Struct, frozen=True):
    namespace: str
    name: str
    generation: int
    phase: Phase
    url: str
    mode: str = ""
    urls: Mapping[str, str] = {}  # http, grpc, host
    conditions: tuple[Condition, ...] = ()
    revisions: tuple[RevisionStatus, ...] = ()  # newest first
    message: str = ""  # one sentence when not everything is well
    overrides: Mapping[str, Mapping[str, Json]] = {}
    warnings: tuple[str, ...] = ()


class Event(Struct, frozen=True):
    at: str
    namespace: str
    service: str
    object: str  # Revision/iris-predictor-1f3a9c07, Replica/…
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    number: int = 0  # grows; what `follow` goes on from


class Share(Struct, frozen=True):
    revision: str
    percent: int
    tag: str = ""


class Way(Struct, frozen=True):
    """How this machine sends requests to a service: what their URLs begin with, and headers that go along."""

    url: str
    headers: Mapping[str, str] = {}


class KeptCanary(Struct, frozen=True):
    """What a target keeps of a service's canaries. `version` is another with every change of it."""

    namespace: str
    name: str
    state: str  # canary.model.Ledger as JSON
    version: str

    @property
    def key(self) -> Key:
        return self.namespace, self.name


class Sample(Struct, frozen=True):
    """One element of a query's answer; `at` is the Unix time of the newest measurement behind it, as far as known."""

    labels: Mapping[str, str]
    value: float
    at: float = 0.0


class Target(Protocol):
    """Raises errors of `pilotlight.errors` only. Calls block; waiting is the caller's, by looking at `status`."""

    name: str
    poll_s: float  # how often it is worth looking

    def offers(self) -> Mapping[str, Json]:
        """What a plan should know of it, by the names of plan.model.Capabilities; empty: nothing unusual."""

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Mapping[str, Json]]], Sequence[str]]:
        """Runtimes, models and accelerators that it has itself, each with where it is from; and what was not shown."""

    def way(self, status: ServiceStatus) -> AbstractContextManager[Way]:
        """Held while requests are sent: it may be a tunnel."""

    def probe(self, status: ServiceStatus) -> str:
        """A real request, the way that clients take; empty: answered, else why not."""

    def note(self, status: ServiceStatus) -> None:
        """Writes down, for others and for later, what whoever looked has seen. Never fails."""

    def live(self, key: Key) -> list[Manifest]:
        """The service's objects as they are, `status` and override annotations included; empty: not there."""

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus: ...
    def status(self, key: Key) -> ServiceStatus: ...
    def list(self, namespace: str | None) -> Sequence[ServiceStatus]: ...
    def releases(self, key: Key) -> Sequence[Release]:
        """Newest first."""

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        """`minReplicas` and `maxReplicas`, kept over deploys; None: as the document says again."""

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus: ...
    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]: ...
    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]: ...
    def delete(self, key: Key) -> None: ...
    def canaries(self, namespace: str | None) -> Sequence[KeptCanary]:
        """Of services that ever had one."""

    def canary(self, key: Key) -> KeptCanary | None: ...
    def keep_canary(self, key: Key, state: str, version: str) -> KeptCanary:
        """In place of the one with that version, "" for none yet; Conflict: somebody else has written since."""

    def query(self, promql: str) -> Sequence[Sample]:
        """What the metrics of services say; PlatformError where nobody can be asked or the query cannot be answered."""
