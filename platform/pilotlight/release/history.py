"""Earlier releases of a service, and its document with another canary share: for `rollback` and `canary`."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import structs

from pilotlight.errors import NotFound, PlatformError
from pilotlight.k8s.names import (
    ACCESS_ANNOTATIONS,
    ACCESS_KEY,
    ANNOTATION_CANARY_PERCENT,
    ANNOTATION_SIDES,
    ENTRY_ROLES,
    LABEL_REVISION,
)
from pilotlight.release import apply

if TYPE_CHECKING:
    from pilotlight.plan.types import Capabilities
    from pilotlight.release.plan_and_render import Documents
    from pilotlight.spec.service import Service
    from pilotlight.targets.target import Event, Json, Key, Release, Target

PERCENT_FIELD = "canaryTrafficPercent"
LLM_KIND = "LLMInferenceService"
FULL_TRAFFIC = (None, 100)  # canary shares of a release with all traffic


def releases(target: "Target", key: "Key") -> "Sequence[Release]":
    """Return the stored releases, newest first. Raises NotFound if there is none."""
    stored = target.releases(key)
    if not stored:
        raise NotFound(f"no release of {'/'.join(key)} is stored", "deploy its manifest: platformctl deploy -f FILE")
    return stored


def revisions(release: "Release") -> set[str]:
    names = set()
    for manifest in release.manifests:
        template = (manifest.get("spec") or {}).get("template") or {}
        metadata = template.get("metadata") or {}
        names |= {metadata.get("name"), (metadata.get("labels") or {}).get(LABEL_REVISION)}
    return {name for name in names if name}


def failed_revisions(events: "Iterable[Event]") -> set[str]:
    """Return revisions whose replicas failed and that never became ready."""
    failed, ready = set(), set()
    for event in events:
        kind, _, name = event.object.partition("/")
        if kind == "Replica" and event.type == "Warning":
            failed.add(name.rpartition("-")[0])
        elif kind == "Revision" and event.reason == "Ready":
            ready.add(name)
    return failed - ready


def previous_release(releases: "Sequence[Release]", to: str, failed: Set[str] = frozenset()) -> "Release":
    """Return a release by generation or revision name; empty: the newest with full traffic and another document.

    Releases with `failed` revisions are skipped unless named.
    """
    current, earlier = releases[0], releases[1:]
    if not to:
        known = released_document(current)
        # Skip canaries, which `abort` reverts, and revisions that never became ready.
        whole = (one for one in earlier if receives_all_traffic(one) and not revisions(one) & failed)
        chosen = next((one for one in whole if released_document(one) != known), None)
        others = [one for one in earlier if released_document(one) != known]
        why = "there is no earlier release"
        if others and chosen is None:
            why = "earlier releases failed or were aborted canaries; choose one with --to"
    else:
        # By generation, then by revision suffix: a hash may consist of digits only.
        numbered = (one for one in releases if to.isdigit() and one.generation == int(to))
        holding = (one for one in releases if any(name == to or name.endswith(f"-{to}") for name in revisions(one)))
        chosen = next(chain(numbered, holding), None)
        why = f"generation {to} is not stored" if to.isdigit() else f"no release has a revision {to}"
    if chosen is None:
        stored = [f"{one.generation} ({', '.join(sorted(revisions(one))) or 'no revision'})" for one in releases]
        raise NotFound(f"{current.namespace}/{current.name}: {why}; stored: {', '.join(stored)}")
    return chosen


def comparable_document(service: "Service", capabilities: "Capabilities") -> str:
    """Return the document without canary share, access rules and the cluster's GPUs.

    Promoted, with a new token, or beside new nodes, it is the same.
    """
    known = replace(capabilities, gpu_memory=0)
    return apply.document_text(_with_access(_service_with_percent(service, None), {}), known)


def released_document(release: "Release") -> str:
    documents, capabilities = apply.read_release(release)
    return comparable_document(documents.services[0], capabilities)


@dataclass(frozen=True, slots=True)
class RunningCanary:
    """The release that runs as a canary, and the stable one it is compared with."""

    release: "Release"
    stable: "Release"
    percent: int

    @property
    def new_revisions(self) -> set[str]:
        """Revisions of the canary only."""
        return revisions(self.release) - revisions(self.stable)


def running_canary(releases: "Sequence[Release]") -> RunningCanary | None:
    """Return the canary; None: the newest release has all traffic."""
    if receives_all_traffic(releases[0]):
        return None
    stable = next((one for one in releases[1:] if receives_all_traffic(one)), None)
    if stable is None:
        message = f"the release before the canary of {releases[0].name} is not stored"
        raise NotFound(message, "deploy its manifest: -f FILE")
    return RunningCanary(releases[0], stable, canary_percent(releases[0]) or 0)


def stable_release(releases: "Sequence[Release]") -> "Release":
    """Return the release that a canary is, or would be, compared with."""
    running = running_canary(releases)
    return running.stable if running else releases[0]


def receives_all_traffic(release: "Release") -> bool:
    """Whether the release's revision has all traffic and no other variant is deployed."""
    documents, _ = apply.read_release(release)
    return all(
        _entry_component(one)[1] in FULL_TRAFFIC and ANNOTATION_SIDES not in one.annotations
        for one in documents.services
    )


def canary_percent(release: "Release") -> int | None:
    documents, _ = apply.read_release(release)
    return next((_entry_component(service)[1] for service in documents.services), None)


def _entry_component(service: "Service") -> tuple[str, int | None]:
    """Return the component that receives requests first, and its canary share."""
    role = next((name for name in ENTRY_ROLES if name in service.components), "predictor")
    component = next((each for name, each in service.components.items() if name == role), None)
    return role, component.canary_traffic_percent if component else None


def with_canary_percent(documents: "Documents", percent: int | None, *, judged: bool = False) -> "Documents":
    """Return the documents with this canary share for their new revisions; None: all traffic.

    `judged`: both variants get tags to be queried by, and the stable one stays at 100 % too.
    """
    services = tuple(_service_with_percent(service, percent, judged) for service in documents.services)
    return replace(documents, services=services)


def _service_with_percent(service: "Service", percent: int | None, judged: bool = False) -> "Service":
    """Set the share in the parsed service and in its document. OME's deprecated `predictor` is the engine."""
    role, _ = _entry_component(service)
    components = {
        name: replace(each, canary_traffic_percent=percent) if name == role else each
        for name, each in service.components.items()
    }
    if service.document.get("kind") == LLM_KIND:  # engine and router are no fields of its document
        removed = (ANNOTATION_SIDES, ANNOTATION_CANARY_PERCENT)
        added = {} if percent is None else {ANNOTATION_CANARY_PERCENT: str(percent)}
        written = {**added, **({ANNOTATION_SIDES: "both"} if judged else {})}
        return _with_annotations(replace(service, components=components), removed, written)
    spec = dict(service.document.get("spec") or {})
    component = role if role in spec else "predictor"
    share = {} if percent is None else {PERCENT_FIELD: percent}
    others = {name: value for name, value in (spec.get(component) or {}).items() if name != PERCENT_FIELD}
    spec[component] = {**others, **share}
    changed = replace(service, components=components, document={**service.document, "spec": spec})
    return _with_annotations(changed, (ANNOTATION_SIDES,), {ANNOTATION_SIDES: "both"} if judged else {})


def _with_access(service: "Service", annotations: Mapping[str, str]) -> "Service":
    """Return the service with the access rules among these annotations instead of its own."""
    kept = {name: annotations[name] for name in ACCESS_ANNOTATIONS if name in annotations}
    return _with_annotations(service, ACCESS_ANNOTATIONS, kept)


def _with_annotations(service: "Service", removed: Iterable[str], added: Mapping[str, str]) -> "Service":
    """Replace annotations in the parsed service and in its document."""
    removed = frozenset(removed)

    def changed(written: Mapping[str, str]) -> dict[str, str]:
        return {**{name: value for name, value in written.items() if name not in removed}, **added}

    metadata = dict(service.document.get("metadata") or {})
    if annotations := changed(metadata.pop("annotations", None) or {}):
        metadata["annotations"] = annotations
    return replace(
        service, annotations=changed(service.annotations), document={**service.document, "metadata": metadata}
    )


def with_current_access(release: "Release", newest: "Release") -> "Release":
    """Return a stored release with the access rules of the newest one, in its document and its manifests.

    Going back must not admit a token that was revoked since, nor everybody. Raise PlatformError if no workload of the
    release can have the rules.
    """
    documents, capabilities = apply.read_release(release)
    current, _ = apply.read_release(newest)
    service = _with_access(documents.services[0], current.services[0].annotations)
    rules = {_identity(one): found for one in newest.manifests if (found := _access_annotations(one))}
    if not rules.keys() <= {_identity(one) for one in release.manifests}:
        raise PlatformError(
            f"generation {release.generation} has different workloads than the access rules",
            f"platformctl rollback {release.name} --to {release.generation}",
        )
    secrets = {_identity(one): one for one in newest.manifests if ACCESS_KEY in (one.get("stringData") or {})}
    manifests = tuple(
        secrets.get(_identity(one)) or _manifest_with_access(one, rules.get(_identity(one), {}))
        for one in release.manifests
    )
    return structs.replace(release, document=apply.document_text(service, capabilities), manifests=manifests)


def _identity(manifest: "Mapping[str, Json]") -> tuple[str, str, str]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def _access_annotations(manifest: "Mapping[str, Json]") -> dict[str, str]:
    written = manifest["metadata"].get("annotations") or {}
    return {name: written[name] for name in ACCESS_ANNOTATIONS if name in written}


def _manifest_with_access(manifest: "Mapping[str, Json]", access: Mapping[str, str]) -> "Mapping[str, Json]":
    if _access_annotations(manifest) == access:
        return manifest
    metadata = dict(manifest["metadata"])
    others = {
        name: value
        for name, value in (metadata.pop("annotations", None) or {}).items()
        if name not in ACCESS_ANNOTATIONS
    }
    if others or access:
        metadata["annotations"] = {**others, **access}
    return {**manifest, "metadata": metadata}


def redeploy_request(
    release: "Release", percent: int | None, note: str, *, newest: "Release", judged: bool = False
) -> apply.ReleaseRequest:
    """Return a request for a stored release, with its own traffic split instead of a manual one.

    It keeps the access rules of the newest: going back must not admit a token that was revoked since, nor everybody.
    """
    documents, capabilities = apply.read_release(release)
    current, _ = apply.read_release(newest)
    services = tuple(_with_access(one, current.services[0].annotations) for one in documents.services)
    shared = with_canary_percent(replace(documents, services=services), percent, judged=judged)
    return apply.ReleaseRequest(shared, capabilities, reset_traffic=True, note=note)
