"""Earlier releases of a service, and its document with another canary share: for `rollback` and `canary`."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pilotlight import releasing
from pilotlight.errors import NotFound
from pilotlight.names import ANNOTATION_SIDES, LABEL_REVISION

if TYPE_CHECKING:
    from pilotlight.deploy import Documents
    from pilotlight.plan.model import Capabilities
    from pilotlight.spec.model import Service
    from pilotlight.targets.target import Event, Key, Release, Target

FIELD = "canaryTrafficPercent"
WHOLE = (None, 100)  # shares of a revision that stands alone
# Who receives a service's requests, in the order in which they stand before each other.
ENTRIES = ("router", "transformer", "engine", "predictor")


def releases(target: "Target", key: "Key") -> "Sequence[Release]":
    """Newest first, at least one."""
    found = target.releases(key)
    if not found:
        raise NotFound(f"no release of {'/'.join(key)} is kept", "give its document: platformctl deploy -f FILE")
    return found


def revisions(release: "Release") -> set[str]:
    """Names of the revisions that the release's own manifests describe."""
    found = set()
    for manifest in release.manifests:
        template = (manifest.get("spec") or {}).get("template") or {}
        metadata = template.get("metadata") or {}
        found |= {metadata.get("name"), (metadata.get("labels") or {}).get(LABEL_REVISION)}
    return {name for name in found if name}


def unproven(events: "Iterable[Event]") -> set[str]:
    """Revisions of which replicas failed, and which never answered."""
    failed, ready = set(), set()
    for event in events:
        kind, _, name = event.object.partition("/")
        if kind == "Replica" and event.type == "Warning":
            failed.add(name.rpartition("-")[0])
        elif kind == "Revision" and event.reason == "Ready":
            ready.add(name)
    return failed - ready


def earlier(found: "Sequence[Release]", to: str, broken: Set[str] = frozenset()) -> "Release":
    """By generation or by the name of a revision; empty: the newest that had all requests with another document.

    Unless it is asked for, none of the `broken` revisions is gone back to.
    """
    present, before = found[0], found[1:]
    if not to:
        known = document_of(present)
        # Neither a canary, which `abort` takes back, nor what never worked.
        whole = (one for one in before if alone(one) and not revisions(one) & broken)
        chosen = next((one for one in whole if document_of(one) != known), None)
        others = [one for one in before if document_of(one) != known]
        why = "nothing else was deployed before"
        if others and chosen is None:
            why = "what was deployed before failed, or was a canary that was aborted; name one with --to"
    else:
        chosen = _named(found, to)
        why = f"generation {to} is not kept" if to.isdigit() else f"no release has a revision {to}"
    if chosen is None:
        raise NotFound(f"{present.namespace}/{present.name}: {why}; {_kept(found)}")
    return chosen


def _named(found: "Sequence[Release]", to: str) -> "Release | None":
    """A hash may have no letter in it: what is no generation may still be the end of a revision's name."""
    numbered = (one for one in found if to.isdigit() and one.generation == int(to))
    holding = (one for one in found if any(name == to or name.endswith(f"-{to}") for name in revisions(one)))
    return next(chain(numbered, holding), None)


def document(service: "Service", capabilities: "Capabilities") -> str:
    """The text without its share: a canary that was promoted is still the same document."""
    return releasing.document_text(_with_share(service, None), capabilities)


def document_of(release: "Release") -> str:
    documents, capabilities = releasing.stored(release)
    return document(documents.services[0], capabilities)


def _kept(found: "Sequence[Release]") -> str:
    told = [f"{one.generation} ({', '.join(sorted(revisions(one))) or 'no revision'})" for one in found]
    return f"kept are {', '.join(told)}"


@dataclass(frozen=True, slots=True)
class Canary:
    """The release that runs as a canary, and the one whose revision it stands beside."""

    release: "Release"
    stable: "Release"
    percent: int

    @property
    def fresh(self) -> set[str]:
        """The revisions that are being tried."""
        return revisions(self.release) - revisions(self.stable)


def canary(found: "Sequence[Release]") -> Canary | None:
    """None: the newest release has all requests to itself."""
    if alone(found[0]):
        return None
    stable = next((one for one in found[1:] if alone(one)), None)
    if stable is None:
        raise NotFound(f"the release before the canary of {found[0].name} is not kept", "deploy its document: -f FILE")
    return Canary(found[0], stable, share(found[0]) or 0)


def stable(found: "Sequence[Release]") -> "Release":
    """What a canary stands beside, or would."""
    running = canary(found)
    return running.stable if running else found[0]


def alone(release: "Release") -> bool:
    """Whether its revision has all requests, and no other stands beside it."""
    documents, _ = releasing.stored(release)
    return all(_entry(one)[1] in WHOLE and ANNOTATION_SIDES not in one.annotations for one in documents.services)


def share(release: "Release") -> int | None:
    documents, _ = releasing.stored(release)
    return next((_entry(service)[1] for service in documents.services), None)


def _entry(service: "Service") -> tuple[str, int | None]:
    """The component that requests reach first, and its share."""
    role = next((name for name in ENTRIES if name in service.components), "predictor")
    component = next((each for name, each in service.components.items() if name == role), None)
    return role, component.canary_traffic_percent if component else None


def with_share(documents: "Documents", percent: int | None, *, judged: bool = False) -> "Documents":
    """The same documents, their new revisions with this share of the requests; None: with all.

    `judged`: both sides have tags to be asked by, and the other one stays also where the new one has 100 %.
    """
    return replace(documents, services=tuple(_with_share(service, percent, judged) for service in documents.services))


def _with_share(service: "Service", percent: int | None, judged: bool = False) -> "Service":
    """In what is planned and in what is kept of it. OME's deprecated `predictor` is read as the engine."""
    sides = {ANNOTATION_SIDES: "both"} if judged else {}
    annotations = {**{key: value for key, value in service.annotations.items() if key != ANNOTATION_SIDES}, **sides}
    role, _ = _entry(service)
    components = {
        name: replace(each, canary_traffic_percent=percent) if name == role else each
        for name, each in service.components.items()
    }
    spec = dict(service.document.get("spec") or {})
    place = role if role in spec else "predictor"
    spec[place] = _with_field(spec.get(place) or {}, percent)
    document = _annotated({**service.document, "spec": spec}, sides)
    return replace(service, components=components, annotations=annotations, document=document)


def _annotated(document: Mapping[str, Any], sides: Mapping[str, str]) -> dict[str, Any]:
    metadata = dict(document.get("metadata") or {})
    written = metadata.pop("annotations", None) or {}
    annotations = {**{key: value for key, value in written.items() if key != ANNOTATION_SIDES}, **sides}
    return {**document, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}


def _with_field(component: Mapping[str, Any], percent: int | None) -> dict[str, Any]:
    kept = {name: value for name, value in component.items() if name != FIELD}
    return kept if percent is None else {**kept, FIELD: percent}


def again(release: "Release", percent: int | None, note: str, *, judged: bool = False) -> releasing.Wanted:
    """A release's document to be deployed once more, with the shares that it says and not those set by hand."""
    documents, capabilities = releasing.stored(release)
    shared = with_share(documents, percent, judged=judged)
    return releasing.Wanted(shared, capabilities, retake=True, note=note)
