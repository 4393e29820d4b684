"""Earlier releases of a service, and its document with another canary share: for `rollback` and `canary`."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from pilotlight.errors import NotFound
from pilotlight.k8s.names import ANNOTATION_SIDES, ENTRY_ROLES, LABEL_REVISION
from pilotlight.release import apply

if TYPE_CHECKING:
    from pilotlight.plan.types import Capabilities
    from pilotlight.release.plan_and_render import Documents
    from pilotlight.spec.service import Service
    from pilotlight.targets.target import Event, Key, Release, Target

PERCENT_FIELD = "canaryTrafficPercent"
FULL_TRAFFIC = (None, 100)  # canary shares of a release with all traffic


def releases(target: "Target", key: "Key") -> "Sequence[Release]":
    """Return the stored releases, newest first. Raises NotFound if there is none."""
    stored = target.releases(key)
    if not stored:
        raise NotFound(f"no release of {'/'.join(key)} is kept", "give its document: platformctl deploy -f FILE")
    return stored


def revisions(release: "Release") -> set[str]:
    """Return the names of the revisions in the release's manifests."""
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
        why = "nothing else was deployed before"
        if others and chosen is None:
            why = "what was deployed before failed, or was a canary that was aborted; name one with --to"
    else:
        # By generation, then by revision suffix: a hash may consist of digits only.
        numbered = (one for one in releases if to.isdigit() and one.generation == int(to))
        holding = (one for one in releases if any(name == to or name.endswith(f"-{to}") for name in revisions(one)))
        chosen = next(chain(numbered, holding), None)
        why = f"generation {to} is not kept" if to.isdigit() else f"no release has a revision {to}"
    if chosen is None:
        stored = [f"{one.generation} ({', '.join(sorted(revisions(one))) or 'no revision'})" for one in releases]
        raise NotFound(f"{current.namespace}/{current.name}: {why}; kept are {', '.join(stored)}")
    return chosen


def document_without_percent(service: "Service", capabilities: "Capabilities") -> str:
    """Return the document without its canary share: a promoted canary is still the same document."""
    return apply.document_text(_service_with_percent(service, None), capabilities)


def released_document(release: "Release") -> str:
    documents, capabilities = apply.read_release(release)
    return document_without_percent(documents.services[0], capabilities)


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
        message = f"the release before the canary of {releases[0].name} is not kept"
        raise NotFound(message, "deploy its document: -f FILE")
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
    marker = {ANNOTATION_SIDES: "both"} if judged else {}
    annotations = {**{key: value for key, value in service.annotations.items() if key != ANNOTATION_SIDES}, **marker}
    role, _ = _entry_component(service)
    components = {
        name: replace(each, canary_traffic_percent=percent) if name == role else each
        for name, each in service.components.items()
    }
    spec = dict(service.document.get("spec") or {})
    component = role if role in spec else "predictor"
    share = {} if percent is None else {PERCENT_FIELD: percent}
    others = {name: value for name, value in (spec.get(component) or {}).items() if name != PERCENT_FIELD}
    spec[component] = {**others, **share}
    metadata = dict(service.document.get("metadata") or {})
    written = dict(metadata.pop("annotations", None) or {})
    written.pop(ANNOTATION_SIDES, None)
    if written | marker:
        metadata["annotations"] = written | marker
    document = {**service.document, "spec": spec, "metadata": metadata}
    return replace(service, components=components, annotations=annotations, document=document)


def redeploy_request(
    release: "Release", percent: int | None, note: str, *, judged: bool = False
) -> apply.ReleaseRequest:
    """Return a request for a stored release with its own traffic split instead of a manual one."""
    documents, capabilities = apply.read_release(release)
    shared = with_canary_percent(documents, percent, judged=judged)
    return apply.ReleaseRequest(shared, capabilities, reset_traffic=True, note=note)
