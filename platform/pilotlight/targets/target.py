"""What every target can do with manifests, and what it tells. `platformctl` and the API know targets only through this.

A target never plans: it takes a `Release` (the document and the manifests made from it) and shows what runs as
manifests again, from which the next plan takes its `current`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from pilotlight.manifests import Manifest

Json = Any
Key = tuple[str, str]  # namespace, name

Phase = Literal["Ready", "Standby", "Progressing", "Degraded", "Failed", "Stopping"]
ModelState = Literal["Pending", "Standby", "Loading", "Loaded", "FailedToLoad"]


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


class Target(Protocol):
    """Raises errors of `pilotlight.errors` only. Calls block; waiting is the caller's, by looking at `status`."""

    name: str

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
