"""A cluster as a target: the same verbs as on one machine. Knative and KEDA are the engines that scale; we never do.

Every method reads what is there, decides with pure functions (overlay, rows, statuses) and writes by server-side apply.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from pilotlight.errors import Conflict, NotFound, PlatformError
from pilotlight.manifests import Manifest
from pilotlight.targets.kubernetes import (
    applying,
    by_hand,
    canaries,
    events,
    kept,
    logs,
    metrics,
    offers,
    preflight,
    releases,
    snapshot,
)
from pilotlight.targets.kubernetes.cluster import Cluster
from pilotlight.targets.kubernetes.connection import Refused, connect
from pilotlight.targets.kubernetes.immutable import as_sent, sendable
from pilotlight.targets.kubernetes.ingress import NoRight, probe, reach
from pilotlight.targets.kubernetes.moving import Move
from pilotlight.targets.kubernetes.overlay import Overrides, overlaid
from pilotlight.targets.kubernetes.owned_fields import as_applied, shown
from pilotlight.targets.kubernetes.owner import point_to_history, refuse_helms
from pilotlight.targets.kubernetes.rights import allowed
from pilotlight.targets.kubernetes.runtimes_there import runtimes_there
from pilotlight.targets.kubernetes.statuses import overrides_of, status_of
from pilotlight.targets.target import Event, KeptCanary, Key, Release, Sample, ServiceStatus, Share, Way

Json = Any
Document = Mapping[str, Json]
POLL_S: Final = 0.5
READY_PATH: Final = "/v2/health/ready"
FORBIDDEN: Final = 403


class KubernetesTarget:
    """Implements `targets.target.Target`. `force`: fields that others manage are taken over. `prometheus`: the URL of
    the one that is asked; empty: the cluster's own."""

    name = "kubernetes"
    poll_s = POLL_S

    def __init__(self, cluster: Cluster, *, force: bool = False, prometheus: str = "") -> None:
        self.cluster = cluster
        self._force, self._prometheus = force, prometheus

    @classmethod
    def connect(cls, context: str = "", *, force: bool = False, prometheus: str = "") -> "KubernetesTarget":
        return cls(Cluster(connect(context)), force=force, prometheus=prometheus)

    def offers(self) -> Mapping[str, Json]:
        return offers.offers(self.cluster)

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Document]], Sequence[str]]:
        return runtimes_there(self.cluster, namespaces)

    def live(self, key: Key) -> list[Manifest]:
        """As they were applied, as far as nobody changed them since, with their status."""
        found = applying.owned(self.cluster, key)
        laid = self._laid(key, found)
        written = {Manifest(each).key: each for each in laid}
        sent = {Manifest(each).key: as_sent([as_applied(each)], laid)[0] for each in found}
        return [Manifest(shown(each, sent[Manifest(each).key], written.get(Manifest(each).key, {}))) for each in found]

    def _laid(self, key: Key, found: Sequence[Document]) -> list[dict[str, Json]]:
        kept_releases = releases.stored(self.cluster, key)
        return overlaid(kept_releases[0].manifests, overrides_of(found)) if kept_releases else []

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        key = (release.namespace, release.name)
        there = self._snapshot(key)
        self._check_owner(there, key, "deploy")
        if release.expected not in (None, there.generation):
            raise Conflict(f"{'/'.join(key)} is at generation {there.generation}, not {release.expected}")
        wanted = overlaid(release.manifests, {} if reset else overrides_of(there.workloads))
        known, remarks = preflight.optional(self.cluster, wanted)
        documents = sendable(known, there.workloads)
        self._check_needs(key, documents)
        remarks = [*remarks, *applying.checked(self.cluster, documents, force=self._force)]
        if dry_run:
            return self._dry(there, key, remarks)
        self._keep(release)
        self._written(there, documents)
        releases.prune(self.cluster, key, canaries.stable_generation(self.cluster, key))
        status = self._status(key, remarks)
        told = kept.keep(self.cluster, release, status, _now())
        return replace(status, warnings=(*status.warnings, told)) if told else status

    def _check_needs(self, key: Key, documents: Sequence[Document]) -> None:
        missing = [*preflight.missing(self.cluster, documents), *applying.foreign(self.cluster, key, documents)]
        if missing:
            lines = [f"the cluster lacks what {'/'.join(key)} needs; nothing was written", *missing]
            raise PlatformError("\n  ".join(lines), "platformctl doctor --target kubernetes")

    def _check_owner(self, there: snapshot.Snapshot, key: Key, verb: str) -> None:
        refuse_helms(map(Manifest, there.workloads), *key, verb)

    def _keep(self, release: Release) -> None:
        """A new generation, unless the newest one says the same."""
        found = releases.stored(self.cluster, (release.namespace, release.name))
        following = releases.following(found, release)
        if not found or not releases.same(found[0], release):
            releases.keep(self.cluster, release, following, _now())

    def _written(self, there: snapshot.Snapshot, documents: Sequence[Document]) -> None:
        """In an order in which no request is lost; that may take as long as the side of a canary needs to start."""

        def failed() -> str:
            status = self._status(there.key)
            return status.message if any(row.model_state == "FailedToLoad" for row in status.revisions) else ""

        Move(self.cluster, there.key, failed, force=self._force).make(documents, there.objects)

    def _dry(self, there: snapshot.Snapshot, key: Key, remarks: Sequence[str]) -> ServiceStatus:
        if there.workloads:
            return status_of(there, remarks)
        return ServiceStatus(*key, 0, "Progressing", "", warnings=tuple(remarks))

    def status(self, key: Key) -> ServiceStatus:
        return self._status(key)

    def note(self, status: ServiceStatus) -> None:
        """In the object that kubectl shows, and what failed in the release that it belongs to."""
        with suppress(PlatformError):
            kept.refresh(self.cluster, status, _now())
            releases.remember(self.cluster, status)

    def _status(self, key: Key, warnings: Sequence[str] = ()) -> ServiceStatus:
        return status_of(self._found(key), warnings)

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        try:
            return [status_of(each) for each in snapshot.take(self.cluster, namespace).values()]
        except Refused as error:
            if namespace is None and error.code == FORBIDDEN:
                raise PlatformError("you may not look into all namespaces", "name one: -n NAMESPACE") from error
            raise

    def releases(self, key: Key) -> Sequence[Release]:
        found = releases.stored(self.cluster, key)
        if not found:
            point_to_history(map(Manifest, self._snapshot(key).workloads), *key)
        return found

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        there = self._changeable(key, "scale")
        return self._overridden(there, *by_hand.scaled(there, bounds))

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        there = self._changeable(key, "traffic")
        return self._overridden(there, by_hand.split(there, shares))

    def _changeable(self, key: Key, verb: str) -> snapshot.Snapshot:
        there = self._found(key)
        self._check_owner(there, key, verb)
        by_hand.check_whole(there)
        return there

    def _overridden(self, there: snapshot.Snapshot, overrides: Overrides, told: Sequence[str] = ()) -> ServiceStatus:
        """The newest release once more, with other things set by hand."""
        found = releases.stored(self.cluster, there.key)
        if not found:
            hint = "give its document: platformctl deploy -f FILE"
            raise NotFound(f"no release of {'/'.join(there.key)} is kept", hint)
        known, _ = preflight.optional(self.cluster, overlaid(found[0].manifests, overrides))
        if releases.newest(releases.stored(self.cluster, there.key)) != found[0].generation:
            raise Conflict(f"{'/'.join(there.key)} was deployed anew meanwhile", "look at it, and try again")
        self._written(there, sendable(known, there.workloads))
        return self._status(there.key, told)

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
        return logs.lines(self.cluster, key, follow=follow, previous=previous, replica=replica, tail=tail)

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        return events.events(self.cluster, key, follow)

    def delete(self, key: Key) -> None:
        """Objects first, the account of releases last: what was interrupted is still known as a service."""
        there = self._found(key)
        self._check_owner(there, key, "delete")
        canaries.forget(self.cluster, key)
        applying.removed(self.cluster, applying.owned(self.cluster, key))
        kept.forget(self.cluster, key)
        applying.removed(self.cluster, there.of(releases.API))

    def canaries(self, namespace: str | None) -> Sequence[KeptCanary]:
        return canaries.listed(self.cluster, namespace)

    def canary(self, key: Key) -> KeptCanary | None:
        """None also for who may not look at Leases: a deploy must not need that."""
        return allowed(lambda: canaries.one(self.cluster, key), None)

    def keep_canary(self, key: Key, state: str, version: str) -> KeptCanary:
        return canaries.keep(self.cluster, key, state, version)

    def query(self, promql: str) -> Sequence[Sample]:
        return metrics.query(self.cluster, promql, self._prometheus)

    @contextmanager
    def way(self, status: ServiceStatus) -> Iterator[Way]:
        opened = reach(self.cluster, status.url, urlsplit(status.url).netloc, status.namespace)
        try:
            yield Way(opened.url, opened.headers)
        finally:
            opened.close()

    def probe(self, status: ServiceStatus) -> str:
        if status.phase != "Ready":
            return ""  # asking would wake what is at rest
        try:
            opened = reach(self.cluster, status.url, urlsplit(status.url).netloc, status.namespace)
        except NoRight:
            return ""  # the cluster says that it is ready, and this account may not ask itself
        except PlatformError as error:
            return str(error)
        try:
            return probe(opened, READY_PATH)
        finally:
            opened.close()

    def _snapshot(self, key: Key) -> snapshot.Snapshot:
        return snapshot.take(self.cluster, *key).get(key) or snapshot.Snapshot(key)

    def _found(self, key: Key) -> snapshot.Snapshot:
        found = self._snapshot(key)
        if not found.objects:
            raise NotFound(f"there is no service {'/'.join(key)}", "platformctl list shows those that there are")
        return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
