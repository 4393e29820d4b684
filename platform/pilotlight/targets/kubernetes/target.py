"""Kubernetes target: the same verbs as on one machine. Scaling is left to Knative and KEDA.

Every method reads the objects, decides with pure functions and writes by server-side apply.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

from pilotlight.errors import Conflict, NotFound, PlatformError, UsageError
from pilotlight.k8s import names
from pilotlight.k8s.manifest import Change, Manifest, diff
from pilotlight.k8s.timestamps import utc_now
from pilotlight.targets.kubernetes import apply as kubernetes_apply
from pilotlight.targets.kubernetes import (
    canary_store,
    controller_finalizer,
    inferenceservice_mirror,
    kinds,
    preflight,
    service_route,
)
from pilotlight.targets.kubernetes import capabilities as kubernetes_capabilities
from pilotlight.targets.kubernetes import releases as kubernetes_releases
from pilotlight.targets.kubernetes.apply import check_not_helm, with_live_templates
from pilotlight.targets.kubernetes.client import Cluster, KubeApiError, connect
from pilotlight.targets.kubernetes.observe import events as observe_events
from pilotlight.targets.kubernetes.observe import logs as observe_logs
from pilotlight.targets.kubernetes.observe import snapshot as observe_snapshot
from pilotlight.targets.kubernetes.observe.snapshot import Snapshot
from pilotlight.targets.kubernetes.observe.status import entries, read_overrides, revision_rows, status_of
from pilotlight.targets.kubernetes.ordered_apply import Rollout
from pilotlight.targets.kubernetes.scale_traffic_overrides import Overrides, apply_overrides, bounds_of, is_knative
from pilotlight.targets.target import (
    CanaryRecord,
    Event,
    Key,
    Release,
    Sample,
    ServiceRoute,
    ServiceStatus,
    Share,
    check_shares,
)

Json = Any
Document = Mapping[str, Json]
POLL_S: Final = 0.5
READY_PATH: Final = "/v2/health/ready"
ACTIVATORS: Final = (service_route.OUR_GATEWAY[1], "keda-add-ons-http-interceptor-proxy")


class KubernetesTarget:
    """Implements `targets.target.Target`.

    `force`: take over fields of other managers. `prometheus`: URL of a Prometheus; empty: the cluster's own.
    `reconciled`: a controller calls it again, so that nothing is waited for and missing requirements show in the
    status; InferenceService objects are the controller's input and are not written. `activators`: the Services outside
    of a service's namespace that its route may lead to.
    """

    name = "kubernetes"
    embedded = False
    poll_s = POLL_S

    def __init__(
        self, cluster: Cluster, *, force: bool = False, prometheus: str = "", reconciled: bool = False,
        activators: Sequence[str] = ACTIVATORS,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self._force, self._prometheus, self._reconciled, self._activators = force, prometheus, reconciled, activators
        self._secrets: dict[Key, Document] = {}  # own Secrets of services, written by `apply`

    @classmethod
    def connect(cls, context: str = "", *, force: bool = False, prometheus: str = "") -> "KubernetesTarget":
        return cls(Cluster(connect(context)), force=force, prometheus=prometheus)

    def capabilities(self) -> Mapping[str, Json]:
        return {**kubernetes_capabilities.discover(self.cluster), "target": self.name}

    def catalogue(self, namespaces: Sequence[str]) -> tuple[Sequence[tuple[str, Document]], Sequence[str]]:
        return kubernetes_capabilities.cluster_catalogue(self.cluster, namespaces)

    def live(self, key: Key) -> list[Manifest]:
        """Return the objects as applied, with later changes of other managers, and with their status."""
        objects = kubernetes_apply.owned(self.cluster, key)
        desired = self._released(key, objects)
        written = {Manifest(each).key: each for each in desired}
        sent = [
            kubernetes_apply.with_sent_templates([kubernetes_apply.applied_fields(each)], desired)[0]
            for each in objects
        ]
        return [
            Manifest(kubernetes_apply.as_shown(each, applied, written.get(Manifest(each).key, {})))
            for each, applied in zip(objects, sent, strict=True)
        ]

    def _released(self, key: Key, objects: Sequence[Document]) -> list[dict[str, Json]]:
        """Return the manifests of the newest release with the overrides of these objects."""
        newest = kubernetes_releases.newest_object(self.cluster, key)
        released = kubernetes_releases.read(newest).manifests if newest else ()
        return apply_overrides(released, read_overrides(objects))

    def drift(self, key: Key) -> list[Change]:
        """Return how the service's own objects differ from its newest release."""
        live = self.live(key)
        released, _ = preflight.drop_unknown_optional(
            self.cluster, self._released(key, [each.document for each in live])
        )
        return diff(live, [Manifest(each) for each in released if names.LABEL_SERVICE in kinds.labels(each)])

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        key = (release.namespace, release.name)
        current = self._snapshot(key)
        check_not_helm(map(Manifest, current.workloads), *key, "deploy")
        if release.expected not in (None, current.generation):
            raise Conflict(f"{'/'.join(key)} is at generation {current.generation}, not {release.expected}")
        manifests = apply_overrides(release.manifests, {} if reset else read_overrides(current.workloads))
        known, warnings = preflight.drop_unknown_optional(self.cluster, manifests)
        documents = with_live_templates(known, current.objects)
        documents += [self._secrets[key]] if key in self._secrets else []
        self._check_namespace(key, documents)
        self._check_requirements(key, documents)
        replacing = kubernetes_apply.replacing_knative(self.cluster, key, documents)
        tried = [each for each in documents if each not in replacing]
        warnings = [*warnings, *kubernetes_apply.dry_run(self.cluster, tried, force=self._force)]
        if dry_run and current.workloads:
            return status_of(current, warnings)
        if dry_run:
            return ServiceStatus(*key, 0, "Progressing", "", warnings=tuple(warnings), target=self.name)
        stored = kubernetes_releases.stored(self.cluster, key)
        generation = kubernetes_releases.next_generation(stored, release)
        if not self._reconciled:
            inferenceservice_mirror.write_reconciled(self.cluster, release, force=self._force)
        # Secrets are not stored: with the release stored, all that it lacks can be applied from it after a crash.
        secrets = [each for each in documents if each["kind"] == "Secret"]
        kubernetes_apply.apply(self.cluster, secrets, force=self._force)
        if not stored or not kubernetes_releases.same(stored[0], release):
            kubernetes_releases.save(self.cluster, release, generation, utc_now("seconds"))
        self._roll_out(current, [each for each in documents if each["kind"] != "Secret"])
        kubernetes_releases.prune(self.cluster, key, canary_store.stable_generation(self.cluster, key))
        status = self.status(key, warnings)
        if self._reconciled:
            return status
        warning = inferenceservice_mirror.save(self.cluster, release, status, utc_now("seconds"))
        return replace(status, warnings=(*status.warnings, warning)) if warning else status

    def _check_namespace(self, key: Key, documents: Sequence[Document]) -> None:
        kubernetes_apply.check_namespace(key, documents, self._activators if self._reconciled else ())

    def _check_requirements(self, key: Key, documents: Sequence[Document]) -> None:
        missing = [
            *([] if self._reconciled else preflight.missing(self.cluster, documents)),
            *kubernetes_apply.not_owned(self.cluster, key, documents),
        ]
        if missing:
            lines = [f"the cluster lacks what {'/'.join(key)} needs; nothing was written", *missing]
            raise PlatformError("\n  ".join(lines), "platformctl doctor --target kubernetes")

    def _roll_out(self, current: Snapshot, documents: Sequence[Document]) -> None:
        """Apply in an order in which no request is lost; blocks while a canary's variant starts."""

        def failed() -> str:
            status = self.status(current.key)
            return status.message if any(row.model_state == "FailedToLoad" for row in status.revisions) else ""

        rollout = Rollout(self.cluster, current.key, failed, force=self._force, wait=not self._reconciled)
        rollout.apply(documents, current.objects)
        kubernetes_releases.mark_complete(self.cluster, current.key)

    def status(self, key: Key, warnings: Sequence[str] = ()) -> ServiceStatus:
        return status_of(self._existing_snapshot(key), warnings)

    def record_status(self, status: ServiceStatus) -> None:
        """Update the status of the InferenceService and the failed revisions of the release."""
        with suppress(PlatformError):
            inferenceservice_mirror.update_status(self.cluster, status, utc_now("seconds"))
            kubernetes_releases.record_failures(self.cluster, status)

    def list(self, namespace: str | None) -> Sequence[ServiceStatus]:
        try:
            return [status_of(each) for each in observe_snapshot.take(self.cluster, namespace).values()]
        except KubeApiError as error:
            if namespace is None and error.code == kinds.FORBIDDEN:
                raise PlatformError("you may not list all namespaces", "set one: -n NAMESPACE") from error
            raise

    def releases(self, key: Key) -> Sequence[Release]:
        stored = kubernetes_releases.stored(self.cluster, key)
        if not stored:
            kubernetes_apply.check_history_not_helm(map(Manifest, self._snapshot(key).workloads), *key)
        return stored

    def scale(self, key: Key, bounds: Mapping[str, int] | None) -> ServiceStatus:
        current = self._changeable(key, "scale")
        return self._apply_overridden(current, *scale_overrides(current, bounds))

    def traffic(self, key: Key, shares: Sequence[Share] | None) -> ServiceStatus:
        current = self._changeable(key, "traffic")
        return self._apply_overridden(current, traffic_overrides(current, shares))

    def reapply(self, key: Key) -> ServiceStatus:
        """Apply the newest release again, with its overrides: repairs drift, and a rollout that was interrupted."""
        current = self._snapshot(key)
        check_not_helm(map(Manifest, current.workloads), *key, "deploy")
        return self._apply_overridden(current, read_overrides(current.workloads))

    def _changeable(self, key: Key, verb: str) -> Snapshot:
        current = self._existing_snapshot(key)
        check_not_helm(map(Manifest, current.workloads), *key, verb)
        check_deployed(current)
        return current

    def _apply_overridden(self, current: Snapshot, overrides: Overrides, warnings: Sequence[str] = ()) -> ServiceStatus:
        """Apply the newest release again, with other overrides."""
        stored = kubernetes_releases.stored(self.cluster, current.key)
        if not stored:
            hint = "deploy its manifest: platformctl deploy -f FILE"
            raise NotFound(f"no release of {'/'.join(current.key)} is stored", hint)
        known, _ = preflight.drop_unknown_optional(self.cluster, apply_overrides(stored[0].manifests, overrides))
        self._check_namespace(current.key, known)
        if kubernetes_releases.newest(kubernetes_releases.stored(self.cluster, current.key)) != stored[0].generation:
            raise Conflict(f"{'/'.join(current.key)} was deployed again in the meantime", "check it and retry")
        self._roll_out(current, with_live_templates(known, current.objects))
        return self.status(current.key, warnings)

    def logs(self, key: Key, *, follow: bool, previous: bool, replica: str, tail: int) -> Iterator[str]:
        return observe_logs.lines(self.cluster, key, follow=follow, previous=previous, replica=replica, tail=tail)

    def events(self, key: Key | None, *, follow: bool) -> Iterator[Event]:
        return observe_events.events(self.cluster, key, follow)

    def set_secret(self, key: Key, values: Mapping[str, str]) -> None:
        self._secrets[key] = kubernetes_apply.own_secret(key, values)

    def delete(self, key: Key) -> str:
        """Delete the objects, then the releases: after an interruption the service is still listed.

        A document with a finalizer is deleted, and its controller deletes the rest; without one, it is done here.
        """
        current = self._existing_snapshot(key)
        held = [] if self._reconciled else list(inferenceservice_mirror.reconciled(self.cluster, key))
        for each in held:
            self.cluster.delete(each)
        if held and controller_finalizer.is_controller_alive(self.cluster, key[0]):
            return ""
        check_not_helm(map(Manifest, current.workloads), *key, "delete")
        canary_store.delete(self.cluster, key)
        kubernetes_apply.delete(self.cluster, kubernetes_apply.owned(self.cluster, key))
        rules = kubernetes_apply.access_secret(key, current.workloads)
        kinds.unless_forbidden(lambda: kubernetes_apply.delete(self.cluster, rules), None)
        released = [each for release in kubernetes_releases.stored(self.cluster, key) for each in release.manifests]
        kinds.unless_forbidden(lambda: kubernetes_apply.delete_own_secret(self.cluster, key, released), None)
        self._secrets.pop(key, None)
        if not self._reconciled:
            inferenceservice_mirror.delete(self.cluster, key)
        kubernetes_apply.delete(self.cluster, current.of(kubernetes_releases.API))
        for each in inferenceservice_mirror.reconciled(self.cluster, key) if held else ():
            controller_finalizer.remove_finalizer(self.cluster, each)
        kinds_left = ", ".join(each["kind"] for each in held)
        return f"{'/'.join(key)}: no controller runs; the finalizer of its {kinds_left} was removed" if held else ""

    def canaries(self, namespace: str | None) -> Sequence[CanaryRecord]:
        return canary_store.list_canaries(self.cluster, namespace)

    def canary(self, key: Key) -> CanaryRecord | None:
        """Return the record; None also without the permission to read Leases, which a deploy must not need."""
        return kinds.unless_forbidden(lambda: canary_store.get(self.cluster, key), None)

    def save_canary(self, key: Key, state: str, version: str) -> CanaryRecord:
        return canary_store.save(self.cluster, key, state, version)

    def query(self, promql: str) -> Sequence[Sample]:
        return canary_store.query(self.cluster, promql, self._prometheus)

    def open_route(self, status: ServiceStatus) -> AbstractContextManager[ServiceRoute]:
        return service_route.open_route(self.cluster, status.url, status.namespace)

    def probe(self, status: ServiceStatus) -> str:
        if status.phase != "Ready":
            return ""  # a request would wake a service at zero
        try:
            with self.open_route(status) as route:
                return service_route.probe(route, READY_PATH)
        except service_route.NotPermitted:
            return ""  # ready according to the cluster; this account may not send a request
        except PlatformError as error:
            return str(error)

    def _snapshot(self, key: Key) -> Snapshot:
        return observe_snapshot.take(self.cluster, *key).get(key) or Snapshot(key)

    def _existing_snapshot(self, key: Key) -> Snapshot:
        current = self._snapshot(key)
        if not current.objects:
            raise NotFound(f"there is no service {'/'.join(key)}", "see platformctl list --target kubernetes")
        return current


def scale_overrides(snapshot: Snapshot, bounds: Mapping[str, int] | None) -> tuple[Overrides, list[str]]:
    """Return the overrides with these bounds on the entry workloads (None: without), and warnings."""
    before = read_overrides(snapshot.workloads)
    after = dict(before)
    for name in (str(each["metadata"]["name"]) for each in entries(snapshot.workloads)):
        shares = {key: value for key, value in before.get(name, {}).items() if key == "traffic"}
        after[name] = {**shares, **(bounds or {})}
    changes = bool(bounds) or any(bounds_of(written) for written in before.values())
    knative = [each["metadata"]["name"] for each in entries(snapshot.workloads) if is_knative(each) and changes]
    warnings = [
        f"Knative stores the bounds in the revision: {name} gets a new revision with new pods" for name in knative
    ]
    return _without_empty(after), warnings


def traffic_overrides(snapshot: Snapshot, shares: Sequence[Share] | None) -> Overrides:
    """Return the overrides with these shares, stored on the first entry workload; None: without."""
    first, *others = entries(snapshot.workloads)
    if shares and not others and not is_knative(first):
        message = f"{'/'.join(snapshot.key)} is a {first['kind']} with one revision; start a canary to split traffic"
        raise UsageError(message, f"platformctl canary start {snapshot.key[1]} -f FILE --percent 10")
    # Revisions that `status` omits, since they have no pods, are valid too.
    without_pods = {str(each["metadata"]["name"]) for each in snapshot.of(kinds.KNATIVE_REVISION)}
    check_shares(shares or (), {*(row.name for row in revision_rows(snapshot)), *without_pods, "latest"})
    after: dict[str, dict[str, Json]] = {
        name: {key: value for key, value in written.items() if key != "traffic"}
        for name, written in read_overrides(snapshot.workloads).items()
    }
    if shares:
        after.setdefault(str(first["metadata"]["name"]), {})["traffic"] = [to_builtins(share) for share in shares]
    return _without_empty(after)


def check_deployed(snapshot: Snapshot) -> None:
    """Raise PlatformError after an interrupted delete: there are releases, but nothing to change."""
    if not snapshot.workloads:
        message = f"{'/'.join(snapshot.key)} is being deleted, or was partly deleted"
        raise PlatformError(
            message, f"platformctl delete {snapshot.key[1]} -n {snapshot.key[0]} finishes it; or deploy it again"
        )


def _without_empty(overrides: Overrides) -> Overrides:
    return {name: written for name, written in overrides.items() if written}
