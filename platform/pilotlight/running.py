"""What runs now, read from objects as they were rendered or as `kubectl get -o yaml` prints them. Pure.

plan() takes it as `current`: which revisions exist, who gets which share of the requests, what was set by hand, and the
pods of the side that a canary must keep. Both `--current FILE` and a target that reads live objects come through here.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pilotlight import names
from pilotlight.errors import UsageError
from pilotlight.manifests import Manifest
from pilotlight.plan.model import Current, Traffic

Json = Any
ServiceKey = tuple[str, str]  # namespace, name

# Where the objects that are no Knative Service keep the template of their pods.
TEMPLATES: Final = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "LeaderWorkerSet": ("spec", "leaderWorkerTemplate", "leaderTemplate"),
}


def current_of(manifests: Iterable[Manifest]) -> dict[ServiceKey, Current]:
    """By service; objects that belong to none of ours are left out."""
    by_service: dict[ServiceKey, list[Manifest]] = {}
    for manifest in manifests:
        service = _at(manifest.document, ("metadata", "labels")).get(names.LABEL_SERVICE)
        if service:
            by_service.setdefault((manifest.namespace or "default", service), []).append(manifest)
    return {key: _current(found) for key, found in by_service.items()}


def _current(manifests: Iterable[Manifest]) -> Current:
    revisions: dict[str, tuple[str, ...]] = {}
    traffic: dict[str, tuple[Traffic, ...]] = {}
    templates: dict[str, Mapping[str, Json]] = {}
    overrides: dict[str, Mapping[str, Json]] = {}
    for manifest in manifests:
        if by_hand := _overrides(manifest):
            overrides[manifest.name] = by_hand
        if manifest.api_version.startswith("serving.knative.dev/") and manifest.kind == "Service":
            traffic[manifest.name] = _shares(manifest.document)
            revisions[manifest.name] = _knative_revisions(manifest.document, traffic[manifest.name])
        elif manifest.kind in TEMPLATES:
            template = _at(manifest.document, TEMPLATES[manifest.kind])
            revision = _at(template, ("metadata", "labels")).get(names.LABEL_REVISION)
            if revision:
                revisions[manifest.name] = (revision,)
                templates[revision] = template
    return Current(revisions, traffic, overrides, templates)


def _overrides(manifest: Manifest) -> Mapping[str, Json]:
    """What `scale` and `traffic` have set: JSON in an annotation, which a person may have touched."""
    written = _at(manifest.document, ("metadata", "annotations")).get(names.ANNOTATION_OVERRIDES)
    if not written:
        return {}
    try:
        found = json.loads(written)
        counts = [found[key] for key in ("minReplicas", "maxReplicas") if key in found]
        shares = [(str(share["revision"]), share["percent"]) for share in found.get("traffic") or ()]
        if not all(type(count) is int and count >= 0 for count in [*counts, *(percent for _, percent in shares)]):
            raise ValueError(written)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        where = f"{manifest.kind} {manifest.name}: annotation {names.ANNOTATION_OVERRIDES} = {written}"
        raise UsageError(f"{where}, must be JSON as `scale` and `traffic` write it; remove it") from error
    return dict(found)


def _shares(document: Mapping[str, Json]) -> tuple[Traffic, ...]:
    """What Knative says that it does, where it has said so; else what it was told to do."""
    status, spec = _at(document, ("status",)), _at(document, ("spec",))
    newest = status.get("latestReadyRevisionName") or _template_name(document)
    written = status.get("traffic") or spec.get("traffic") or ()
    return tuple(
        Traffic(share.get("revisionName") or newest, _percent(share), str(share.get("tag") or ""))
        for share in (written if isinstance(written, list | tuple) else ())
        if isinstance(share, Mapping) and (share.get("revisionName") or newest)
    )


def _percent(share: Mapping[str, Json]) -> int:
    percent = share.get("percent")
    return percent if isinstance(percent, int) else 0


def _knative_revisions(document: Mapping[str, Json], shares: tuple[Traffic, ...]) -> tuple[str, ...]:
    """Newest first, as far as the object tells."""
    status = _at(document, ("status",))
    newest = [status.get("latestCreatedRevisionName"), status.get("latestReadyRevisionName"), _template_name(document)]
    known = [*newest, *(share.revision for share in shares)]
    return tuple(dict.fromkeys(name for name in known if name))


def _template_name(document: Mapping[str, Json]) -> str:
    return str(_at(document, ("spec", "template", "metadata")).get("name") or "")


def _at(document: Mapping[str, Json], path: tuple[str, ...]) -> Mapping[str, Json]:
    """The map at this path; an empty one where something else or nothing is written: nobody checked these files."""
    found: Json = document
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
