"""Live manifests of a stored service, as a cluster would return them: with overrides and Knative status.

`running.current_of` reads the next plan's current state from these as from a cluster's objects.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import json

from pilotlight import names
from pilotlight.targets.local.store.records import StoredService
from pilotlight.targets.target import RevisionStatus, ServiceStatus

Json = Any
PROVEN: Final = ("Loaded", "Standby", "Parked")  # model states of a revision that has been ready


def live_manifests(stored: StoredService, status: ServiceStatus) -> list[dict[str, Json]]:
    return [_live(manifest, stored, status) for manifest in stored.manifests]


def _live(manifest: dict[str, Json], stored: StoredService, status: ServiceStatus) -> dict[str, Json]:
    metadata = manifest.get("metadata") or {}
    name, knative = str(metadata.get("name", "")), is_knative_service(manifest)
    shown = dict(manifest)
    if (knative or manifest.get("kind") in ("Deployment", "StatefulSet")) and stored.overrides.get(name):
        value = json.encode(stored.overrides[name], order="sorted").decode()
        annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_OVERRIDES: value}
        shown["metadata"] = {**metadata, "annotations": annotations}
    if knative:
        revisions = [revision for revision in status.revisions if revision.workload == name]
        shown["status"] = _knative_status(manifest, revisions)
    return shown


def is_knative_service(manifest: Mapping[str, Json]) -> bool:
    return manifest.get("kind") == "Service" and str(manifest.get("apiVersion")).startswith("serving.knative.dev/")


def _knative_status(manifest: Mapping[str, Json], revisions: Sequence[RevisionStatus]) -> dict[str, Json]:
    """Return the status of a Knative Service; `revisions` are newest first."""
    template = manifest["spec"]["template"].get("metadata") or {}
    created = template.get("name") or next((revision.name for revision in revisions), "")
    ready = next((revision.name for revision in revisions if revision.model_state in PROVEN), "")
    status = {
        "latestCreatedRevisionName": created,
        "latestReadyRevisionName": ready,
        "traffic": [share for revision in revisions for share in _shares(revision)],
    }
    return {key: value for key, value in status.items() if value}


def _shares(revision: RevisionStatus) -> Iterator[dict[str, Json]]:
    """Yield Knative's traffic entries: one per tag, the percentage in the first."""
    target = {"revisionName": revision.name, "latestRevision": False}
    for index, tag in enumerate(revision.tags or (("",) if revision.percent else ())):
        yield {**target, "percent": 0 if index else revision.percent, **({"tag": tag} if tag else {})}
