"""Reconciliation of one InferenceService: observe, decide, act, report. Called in threads, one at a time per service.

Every step may be repeated after a crash: server-side apply, a release under the name of its generation, and a mark on
the release once all of it was applied.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from pilotlight.canaries import start_request, stored_history
from pilotlight.canaries.canary_state import Canary
from pilotlight.controller import decision
from pilotlight.controller.decision import Decision, Observed
from pilotlight.controller.object_cache import CachedCluster
from pilotlight.controller.settings import ControllerSettings
from pilotlight.errors import NotFound, PlatformError
from pilotlight.k8s import names
from pilotlight.k8s.timestamps import utc_now
from pilotlight.plan.types import Capabilities
from pilotlight.release.apply import ReleaseRequest, prepare, read_release
from pilotlight.release.plan_and_render import Documents, Sources, plan_documents, read
from pilotlight.spec.problems import Problem, SourceLocation
from pilotlight.spec.service import Service
from pilotlight.spec.yaml_nodes import Node, node_of
from pilotlight.targets.kubernetes import capabilities, inferenceservice_mirror, releases
from pilotlight.targets.kubernetes.client import Cluster
from pilotlight.targets.kubernetes.controller_finalizer import has_finalizer
from pilotlight.targets.kubernetes.inferenceservice_mirror import Kind, kind_of, to_object
from pilotlight.targets.kubernetes.observe.events import post_event
from pilotlight.targets.kubernetes.target import ACTIVATORS, KubernetesTarget
from pilotlight.targets.target import Condition, Key, Release, ServiceStatus

Json = Any
Document = Mapping[str, Json]
CAPABILITIES_S: Final = 60.0  # for which discovered capabilities are used
# Marks of Argo CD and Flux on what they apply: copied to pods and Services, they would prune those.
_TRACKING: Final = (
    "app.kubernetes.io/instance", "argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/"
)  # fmt: skip
_DRIFT: Final = {"added": "was missing", "removed": "was left over", "changed": "was changed"}
log = logging.getLogger("pilotlight.controller")


class Reconciler:
    """Steps of all services; its calls may come from many threads."""

    def __init__(
        self, cluster: CachedCluster, settings: ControllerSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        gateway = str(settings.capabilities.get("gateway_scaler") or "").partition(".")[0]
        self.cluster = cluster
        self.target = KubernetesTarget(cluster, reconciled=True, activators=(*ACTIVATORS, gateway))
        self._settings, self._clock = settings, clock
        self._locks: WeakValueDictionary[Key, threading.Lock] = WeakValueDictionary()  # those that a thread uses
        self._locking = threading.Lock()
        self._failures: dict[Key, tuple[int, int]] = {}  # generation of the document, failures in a row
        self._unrepaired: dict[Key, tuple[str, ...]] = {}
        self._discovered: tuple[float, Capabilities] | None = None

    def reconcile(self, kind: Kind, key: Key) -> float:
        """Bring one service in line with its document; return the seconds until it must be looked at again."""
        with self._lock(key):
            document = self.cluster.cache.get(kind, *key)
            # The finalizer comes first: without it, a deletion would leave behind what is applied here.
            if document is None or not has_finalizer(document) or "deletionTimestamp" in document["metadata"]:
                return self._settings.resync_s
            generation = int(document["metadata"].get("generation") or 0)
            try:
                condition, pause = self._converge(document, key), self._settings.resync_s
                self._failures.pop(key, None)
            except PlatformError as error:
                before, failures = self._failures.get(key, (generation, 0))
                failures = failures if before == generation else 0
                self._failures[key] = (generation, failures + 1)
                condition = decision.failure(error)
                pause = decision.retry_s(error, failures, random.uniform(-1, 1), self._settings.resync_s)  # noqa: S311
            self._report(document, key, condition)
            return pause

    def _lock(self, key: Key) -> threading.Lock:
        with self._locking:
            return self._locks.setdefault(key, threading.Lock())

    def _converge(self, document: Document, key: Key) -> Condition | None:
        """Take the next step; return the condition to report instead of the one observed."""
        newest = releases.newest_object(self.cluster, key)
        release = releases.read(newest) if newest else None
        self._check_name(document, key, release)
        (service,) = read(Sources((), namespace=key[0], objects=[_node(document)])).services
        observed = self._observe(service, release, newest is not None and releases.is_complete(newest))
        chosen = decision.decide(observed)
        if chosen.step == "apply" and self._is_current(document):
            self._apply(document, release, chosen)
        elif chosen.step == "reapply":
            self.target.reapply(key)
            self._unrepaired[key] = self._drift(key)
            self._post(document, "Normal", chosen.reason, ", ".join(observed.drift) or "the newest release")
        return Condition("Ready", "False", chosen.reason, chosen.message) if chosen.message else None

    def _is_current(self, document: Document) -> bool:
        """Whether the API server has no newer document: the watch of releases may be ahead of that of documents."""
        metadata = document["metadata"]
        kind = document["apiVersion"], document["kind"]
        newest = Cluster.get(self.cluster, *kind, metadata["namespace"], metadata["name"])
        return newest is not None and newest["metadata"]["resourceVersion"] == metadata["resourceVersion"]

    def _check_name(self, document: Document, key: Key, release: Release | None) -> None:
        """Raise PlatformError if the service belongs to a document of another kind."""
        owner = kind_of(to_object(release.document)) if release else None
        if owner and owner != kind_of(document) and self.cluster.cache.get(owner, *key) is not None:
            message = f"the service {'/'.join(key)} belongs to another object, the {owner[1]} of {owner[0]}"
            raise PlatformError(message, "rename or delete one of the two")

    def _read(self, document: Document, release: Release | None = None) -> Documents:
        """Read the object and the catalogue: the cluster's, and what the release brought from files."""
        namespace = str(document["metadata"]["namespace"])
        installed, _ = self.target.catalogue([namespace])
        here = {decision.identity(each, namespace) for _, each in installed}
        stored = decision.stored_catalogue(release) if release else ()
        brought = [each for each in stored if decision.identity(each, namespace) not in here]
        nodes = [_node(document), *map(_node, brought)]
        return read(Sources((), namespace=namespace, target_catalogue=lambda _: installed, objects=nodes))

    def _observe(self, service: Service, release: Release | None, complete: bool) -> Observed:
        if release is None:
            return Observed(service)
        key = (service.namespace, service.name)
        canary = stored_history.decode_history(self.target.canary(key)).current
        installed, _ = self.target.catalogue([service.namespace])
        changed = decision.catalogue_changed(release, [each for _, each in installed])
        drift = self._drift(key) if complete else ()
        tried = self._tried(release, canary)
        return Observed(service, release, complete, changed, drift, self._unrepaired.get(key, ()), canary, tried)

    def _tried(self, newest: Release, canary: Canary | None) -> Release | None:
        """Return the release of a canary that was, or is being, rolled back; None: it is the newest, or promoted.

        The canary's generation becomes that of the release that took it back when it ends, after that is applied.
        """
        rolled_back = canary is not None and canary.phase == "RolledBack"
        if canary is None or not (rolled_back or (not canary.ended_at and canary.generation < newest.generation)):
            return None
        earlier = canary.generation - rolled_back
        return next(
            (one for one in self.target.releases((newest.namespace, newest.name)) if one.generation <= earlier), None
        )

    def _drift(self, key: Key) -> tuple[str, ...]:
        return tuple(f"{each.key[1]} {each.key[3]} {_DRIFT[each.kind]}" for each in self.target.drift(key))

    def _apply(self, document: Document, release: Release | None, chosen: Decision) -> None:
        documents = self._read(document, release)
        request = ReleaseRequest(documents, self._capabilities(documents, release), note="kubectl apply")
        canary = start_request.required_canary(self.target, request) if release else None
        if canary is not None:
            start_request.start(canary, self.target, lambda _: None, log.warning)  # its runner posts events
            return
        (prepared,), warnings = prepare(request, self.target)
        status = self.target.apply(prepared.release)
        message = f"generation {status.generation}: {prepared.plan.mode}, {len(prepared.manifests)} objects"
        self._post(document, "Normal", chosen.reason, message)
        for text in dict.fromkeys([*map(str, warnings), *status.warnings]):
            self._post(document, "Warning", "SpecWarning", text)

    def _capabilities(self, documents: Documents, release: Release | None) -> Capabilities:
        """Return those that the newest release was planned with, so that an edit changes nothing else; else the
        cluster's."""
        if release is not None:
            stored, planned_with = read_release(release)
            replans = [each.services[0].annotations.get(names.ANNOTATION_REPLAN) for each in (documents, stored)]
            if replans[0] == replans[1]:
                return planned_with
        return self.discovered()

    def discovered(self) -> Capabilities:
        """Return the capabilities of the cluster, read once a minute at most."""
        now = self._clock()
        if self._discovered is None or now - self._discovered[0] > CAPABILITIES_S:
            self.cluster.forget_kinds()
            self._discovered = now, Capabilities(**{**self.target.capabilities(), **self._settings.capabilities})
        return self._discovered[1]

    def _report(self, document: Document, key: Key, condition: Condition | None) -> None:
        """Write the status if it has changed, and an event if Ready has."""
        before = document.get("status") or {}
        try:
            status = self.target.status(key)
        except NotFound:
            status = ServiceStatus(*key, 0, "Progressing", "", target="kubernetes")
        if condition is not None:
            others = tuple(each for each in status.conditions if each.type != "Ready")
            status = replace(status, conditions=(condition, *others))
        new_status = inferenceservice_mirror.status_of(document, status, utc_now("seconds"))
        if new_status == before:
            return
        written = inferenceservice_mirror.write_status(self.cluster, document, new_status)
        if written is not None:
            self.cluster.cache.put(written)
        releases.record_failures(self.cluster, status)
        old, new = _ready(before), _ready(new_status)
        if new.get("status") == "True" != old.get("status"):
            self._post(document, "Normal", "Ready", f"ready at {new_status.get('url', 'its address')}")
        elif new.get("status") == "False" and any(new.get(name) != old.get(name) for name in ("reason", "message")):
            self._post(document, "Warning", new.get("reason", "NotReady"), new.get("message", ""))

    def _post(self, document: Document, kind: str, reason: str, message: str) -> None:
        metadata = document["metadata"]
        log.info("%s/%s: %s: %s", metadata["namespace"], metadata["name"], reason, message)
        post_event(self.cluster, document, kind, reason, message)

    def delete(self, kind: Kind, key: Key) -> None:
        """Delete what was made of a document. Raises PlatformError; may be repeated."""
        with self._lock(key):
            self._failures.pop(key, None)
            self._unrepaired.pop(key, None)
            newest = releases.newest_object(self.cluster, key)
            if newest is None or kind_of(to_object(newest["data"]["document"])) != kind:
                return  # nothing was applied, or by a document of another kind
            self.target.delete(key)

    def check(self, document: Document) -> Sequence[Problem]:
        """Return the warnings about a document that is about to be written. Raises InvalidDocument.

        Without a request to the cluster: the API server waits for the answer.
        """
        key = (str(document["metadata"]["namespace"]), str(document["metadata"]["name"]))
        newest = releases.newest_object(self.cluster, key)
        release = releases.read(newest) if newest else None
        known = self._discovered[1] if self._discovered else Capabilities(**self._settings.capabilities)
        planned_with = read_release(release)[1] if release else known
        return plan_documents(self._read(document, release), planned_with).warnings


def _ready(status: Document) -> Document:
    return next((each for each in status.get("conditions") or () if each.get("type") == "Ready"), {})


def _node(document: Document) -> Node:
    """Return the document as its author wrote it, located by its name."""
    location = SourceLocation(capabilities.origin(document).removeprefix("cluster: "))
    cleaned = capabilities.without_cluster_fields(document)
    for field in {"labels", "annotations"} & cleaned["metadata"].keys():
        written = (cleaned["metadata"][field] or {}).items()
        cleaned["metadata"][field] = {name: text for name, text in written if not name.startswith(_TRACKING)}
    return node_of(cleaned, location)
