"""Live state of services from rendered objects or the output of `kubectl get -o yaml`. Pure.

plan() takes it as `current`: existing revisions, traffic splits, manual overrides, and the pod templates that a canary
must preserve. Used by `--current FILE` and by targets that read live objects.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pilotlight.errors import UsageError
from pilotlight.k8s import names
from pilotlight.k8s.adapters import Adapter, adapters_of
from pilotlight.k8s.manifest import Manifest
from pilotlight.plan.types import Current, Traffic

Json = Any
ServiceKey = tuple[str, str]  # namespace, name

# Path of the pod template by kind, except for Knative Services.
TEMPLATES: Final = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "LeaderWorkerSet": ("spec", "leaderWorkerTemplate", "leaderTemplate"),
}


def current_of(manifests: Iterable[Manifest]) -> dict[ServiceKey, Current]:
    """Return the live state by service; objects without the service label are ignored."""
    by_service: dict[ServiceKey, list[Manifest]] = {}
    for manifest in manifests:
        service = _mapping_at(manifest.document, ("metadata", "labels")).get(names.LABEL_SERVICE)
        if service:
            by_service.setdefault((manifest.namespace or "default", service), []).append(manifest)
    return {key: _current(objects) for key, objects in by_service.items()}


def _current(manifests: Iterable[Manifest]) -> Current:
    revisions: dict[str, tuple[str, ...]] = {}
    traffic: dict[str, tuple[Traffic, ...]] = {}
    templates: dict[str, Mapping[str, Json]] = {}
    overrides: dict[str, Mapping[str, Json]] = {}
    adapters: dict[str, tuple[Adapter, ...]] = {}
    for manifest in manifests:
        if found := adapters_of(manifest.document):
            adapters[manifest.name] = found
        if manifest_overrides := _overrides(manifest):
            overrides[manifest.name] = manifest_overrides
        if manifest.api_version.startswith("serving.knative.dev/") and manifest.kind == "Service":
            traffic[manifest.name] = _shares(manifest.document)
            status = _mapping_at(manifest.document, ("status",))
            newest = [status.get("latestCreatedRevisionName"), status.get("latestReadyRevisionName")]
            shared = (share.revision for share in traffic[manifest.name])
            known = [*newest, _template_name(manifest.document), *shared]
            revisions[manifest.name] = tuple(dict.fromkeys(filter(None, known)))
        elif manifest.kind in TEMPLATES:
            template = _mapping_at(manifest.document, TEMPLATES[manifest.kind])
            revision = _mapping_at(template, ("metadata", "labels")).get(names.LABEL_REVISION)
            if revision:
                revisions[manifest.name] = (revision,)
                templates[revision] = template
    return Current(revisions, traffic, overrides, templates, adapters)


def _overrides(manifest: Manifest) -> Mapping[str, Json]:
    """Return the overrides of `scale` and `traffic`: JSON in an annotation, which may have been edited."""
    written = _mapping_at(manifest.document, ("metadata", "annotations")).get(names.ANNOTATION_OVERRIDES)
    if not written:
        return {}
    try:
        values = json.loads(written)
        counts = [values[key] for key in ("minReplicas", "maxReplicas") if key in values]
        shares = [(str(share["revision"]), share["percent"]) for share in values.get("traffic") or ()]
        if not all(type(count) is int and count >= 0 for count in [*counts, *(percent for _, percent in shares)]):
            raise ValueError(written)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        subject = f"{manifest.kind} {manifest.name}: annotation {names.ANNOTATION_OVERRIDES} = {written}"
        raise UsageError(f"{subject}, must be JSON as `scale` and `traffic` write it; remove it") from error
    return dict(values)


def _shares(document: Mapping[str, Json]) -> tuple[Traffic, ...]:
    """Return the traffic of Knative's status, else of its spec."""
    status, spec = _mapping_at(document, ("status",)), _mapping_at(document, ("spec",))
    newest = status.get("latestReadyRevisionName") or _template_name(document)
    written = status.get("traffic") or spec.get("traffic") or ()
    return tuple(
        Traffic(
            share.get("revisionName") or newest,
            percent if isinstance(percent := share.get("percent"), int) else 0,
            str(share.get("tag") or ""),
        )
        for share in (written if isinstance(written, list | tuple) else ())
        if isinstance(share, Mapping) and (share.get("revisionName") or newest)
    )


def _template_name(document: Mapping[str, Json]) -> str:
    return str(_mapping_at(document, ("spec", "template", "metadata")).get("name") or "")


def _mapping_at(document: Mapping[str, Json], path: tuple[str, ...]) -> Mapping[str, Json]:
    """Return the mapping at this path; empty if there is none: these files are not validated."""
    value: Json = document
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
