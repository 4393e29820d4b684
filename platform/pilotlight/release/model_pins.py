"""Pins of the documents of a release: which model URIs they load, and the annotation that carries their content."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pilotlight.k8s.model_pins import changed_files, decode, encode, pins_of
from pilotlight.k8s.names import ANNOTATION_PINS
from pilotlight.release.plan_and_render import Documents, plan_documents

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import Manifest, ObjectKey
    from pilotlight.k8s.model_pins import ModelPin
    from pilotlight.plan.types import Capabilities
    from pilotlight.spec.service import Service


def unpinned_uris(documents: Documents, capabilities: "Capabilities") -> list[str]:
    """Return the model URIs without a pin, in order. Raises InvalidDocument for what cannot be planned."""
    planned = plan_documents(documents, capabilities)
    known = {uri for service in documents.services for uri in decode(service.annotations.get(ANNOTATION_PINS, ""))}
    uris = (uri for plan in planned.plans for workload in plan.workloads for uri in workload.model_uris)
    return [uri for uri in dict.fromkeys(uris) if uri not in known]


def without_pins(documents: Documents) -> Documents:
    """Return the documents without pins, as those of files are: their content is read anew."""
    return replace(documents, services=tuple(_annotated(service, "") for service in documents.services))


def with_pins(documents: Documents, pins: "Mapping[str, ModelPin]") -> Documents:
    """Return the documents with these pins besides those that they have."""

    def pinned(service: "Service") -> "Service":
        return _annotated(service, encode({**decode(service.annotations.get(ANNOTATION_PINS, "")), **pins}))

    return replace(documents, services=tuple(map(pinned, documents.services))) if pins else documents


def changed_models(old: "Iterable[Manifest]", new: "Iterable[Manifest]") -> "dict[ObjectKey, dict[str, list[str]]]":
    """Return the changed files (`~ model.py`) by object and model URI; of a model with too many files its digests."""
    before = {manifest.key: pins_of(manifest.document) for manifest in old}
    changes: dict[ObjectKey, dict[str, list[str]]] = {}
    for manifest in new:
        running = before.get(manifest.key, {})
        for uri, pin in pins_of(manifest.document).items():
            if uri in running and running[uri].digest != pin.digest:
                files = changed_files(running[uri], pin) or [f"{running[uri].digest} to {pin.digest}"]
                changes.setdefault(manifest.key, {})[uri] = files
    return changes


def _annotated(service: "Service", text: str) -> "Service":
    """Set the annotation in the parsed service and in its document."""
    metadata = dict(service.document.get("metadata") or {})
    written = {key: value for key, value in (metadata.pop("annotations", None) or {}).items() if key != ANNOTATION_PINS}
    annotations = {key: value for key, value in service.annotations.items() if key != ANNOTATION_PINS}
    added = {ANNOTATION_PINS: text} if text else {}
    if written | added:
        metadata["annotations"] = written | added
    document = {**service.document, "metadata": metadata}
    return replace(service, annotations=annotations | added, document=document)
