"""What the controller does with one InferenceService. Pure.

A release is compared by its document, never by manifests rendered anew: another version of the platform would render
others, and its installation would restart every service.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from pilotlight.canaries.canary_state import Canary
from pilotlight.errors import Conflict, PlatformError, TimedOut
from pilotlight.k8s import names
from pilotlight.release.apply import read_release
from pilotlight.release.history import PERCENT_FIELD
from pilotlight.spec.problems import InvalidDocument
from pilotlight.spec.service import Service
from pilotlight.targets.kubernetes.apply import FieldConflict, OwnedByHelm
from pilotlight.targets.target import Condition, Release

Json = Any
Step = Literal["apply", "reapply", "none"]
MAX_BACKOFF_S: Final = 300.0
ROLLOUT_S: Final = 10.0  # until a rollout that waits for a pod is looked at again, unless the pod changes before
PROBLEMS_SHOWN: Final = 5


class Observed(NamedTuple):
    """One InferenceService and what was made of it."""

    service: Service
    release: Release | None = None  # the newest
    complete: bool = True  # all its objects were applied
    catalogue_changed: bool = False
    drift: tuple[str, ...] = ()  # objects that differ from the release
    unrepaired: tuple[str, ...] = ()  # of those, what the last repair has not changed
    canary: Canary | None = None  # the newest, running or ended
    canary_release: Release | None = None  # of a canary that was, or is being, rolled back


class Decision(NamedTuple):
    """The next step and its reason, as events show it; `message` becomes the condition Ready=False."""

    step: Step
    reason: str = ""
    message: str = ""


def decide(observed: Observed) -> Decision:
    """Return the one next step. A pause comes before all, an unfinished canary before what the catalogue says."""
    service, release, canary = observed.service, observed.release, observed.canary
    if service.annotations.get(names.ANNOTATION_PAUSED) == "true":
        return Decision("none", "Paused", f"annotation {names.ANNOTATION_PAUSED} pauses changes; remove it to continue")
    if release is None:
        return Decision("apply", "Created")
    if canary is not None and not canary.ended_at:
        # Its runner applies the release that takes it back before it ends.
        written = [_released(each) for each in (release, observed.canary_release) if each]
        same = _content(service, shared=False) in [_content(each, shared=False) for each in written]
        return Decision("none") if same else Decision("apply", "Updated")
    if _content(service) != _content(_released(release)):
        tried = observed.canary_release
        if canary and tried and _content(service, shared=False) == _content(_released(tried), shared=False):
            return Decision("none", "CanaryRolledBack", f"{canary.revision}: {canary.reason}; change the manifest")
        return Decision("apply", "Updated")
    if observed.catalogue_changed:
        return Decision("apply", "CatalogueChanged")
    if not observed.complete:
        return Decision("reapply", "RolloutResumed")
    if observed.drift and observed.drift != observed.unrepaired:
        return Decision("reapply", "DriftRepaired")
    return Decision("none")


def _released(release: Release) -> Service:
    return read_release(release)[0].services[0]


def _content(service: Service, *, shared: bool = True) -> Mapping[str, Json]:
    """Return what a user writes in a document; without `shared` also without the traffic share of a canary."""
    metadata, spec = service.document.get("metadata") or {}, service.document.get("spec") or {}
    ours = names.service_labels("ome", service.name) | names.service_labels("kserve", service.name)
    labels = {name: text for name, text in (metadata.get("labels") or {}).items() if ours.get(name) != text}
    written = (metadata.get("annotations") or {}).items()
    annotations = {name: text for name, text in written if name not in names.RELEASE_ANNOTATIONS}
    if not shared:
        spec = {name: _without_share(part) for name, part in spec.items()}
    # Not the version: the API server shows an object in the one that is watched, whichever it was written in.
    group = str(service.document.get("apiVersion")).partition("/")[0]
    return {"group": group, "labels": labels, "annotations": annotations, "spec": spec}


def _without_share(part: Json) -> Json:
    return {k: v for k, v in part.items() if k != PERCENT_FIELD} if isinstance(part, Mapping) else part


def catalogue_changed(release: Release, current: Iterable[Mapping[str, Json]]) -> bool:
    """Whether a runtime, model or accelerator of the release is different in the cluster.

    One that the cluster does not have any more, or that a file brought, is used as it was stored.
    """
    here = {identity(each, release.namespace): each.get("spec") for each in current}
    return any(
        here[one] != stored.get("spec")
        for stored in stored_catalogue(release)
        if (one := identity(stored, release.namespace)) in here
    )


def stored_catalogue(release: Release) -> list[Mapping[str, Json]]:
    documents, _ = read_release(release)
    return [node.plain() for node in documents.catalogue_nodes]


def identity(document: Mapping[str, Json], namespace: str) -> tuple[str, str, str, str]:
    """Return apiVersion, kind, namespace (empty for kinds of the whole cluster) and name."""
    metadata = document["metadata"]
    cluster = document["kind"].startswith("Cluster") or document["kind"] in ("AcceleratorClass", "FineTunedWeight")
    home = "" if cluster else str(metadata.get("namespace") or namespace)
    return document["apiVersion"], document["kind"], home, metadata["name"]


def failure(error: PlatformError) -> Condition:
    reason, message = "ReconcileFailed", str(error)
    if isinstance(error, InvalidDocument):
        problems = [str(each) for each in error.problems if each.severity == "error"]
        reason, message = "InvalidSpec", "\n".join(problems[:PROBLEMS_SHOWN])
    elif isinstance(error, TimedOut):
        return Condition("Ready", "Unknown", "Progressing", message)
    elif isinstance(error, FieldConflict | OwnedByHelm):
        reason = type(error).__name__
    hint = f" ({error.hint})" if error.hint and not isinstance(error, FieldConflict) else ""
    return Condition("Ready", "False", reason, f"{message}{hint}"[:1000])


def retry_s(error: PlatformError, failures: int, jitter: float, resync_s: float) -> float:
    """Return the seconds until the next attempt after so many failures in a row; `jitter` is between -1 and 1."""
    if isinstance(error, TimedOut):
        return ROLLOUT_S
    if isinstance(error, InvalidDocument):
        return resync_s  # a change of the document or the catalogue comes before
    return min(MAX_BACKOFF_S, 2.0 ** (0 if isinstance(error, Conflict) else failures)) * (1 + 0.1 * jitter)
