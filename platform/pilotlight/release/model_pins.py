"""Pins of the documents of a release: which model URIs they load, and the annotation that carries their content."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import (
    REMOTE_SCHEMES,
    ModelPin,
    changed_files,
    decode,
    encode,
    is_local,
    local_path,
    pins_of,
    scheme_of,
)
from pilotlight.k8s.names import ANNOTATION_PINS
from pilotlight.release.model_check import check_model, check_stored_pickle
from pilotlight.release.plan_and_render import Documents, plan_documents
from pilotlight.release.remote_pins import resolve_remote
from pilotlight.wire.environments.install_command import install_command
from pilotlight.wire.messages import redact_uri
from pilotlight.wire.model_formats import detect
from pilotlight.wire.model_formats.batch_dimension import fixed_batch

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import Manifest, ObjectKey
    from pilotlight.plan.types import Capabilities
    from pilotlight.spec.service import Service

# `snapshot` copies local models for the revision, `record` serves them in place, `compare` stores nothing.
PinMode = Literal["snapshot", "record", "compare"]
_LIBRARIES: Final = {
    **dict.fromkeys(("s3", "gs", "gcs", "az", "azure", "as"), "obstore"),
    **dict.fromkeys(("hf", "hf_model"), "huggingface_hub"),
}


class Progress(Protocol):
    """Callback for steps: Reading (a path, in bytes), Installing, Installed, Warning."""

    def __call__(self, step: str, text: str, done: int = 0, total: int = 0, /) -> None: ...


class LocalModels(Protocol):
    """Models of this machine (targets/local/local_models.py)."""

    def pin(self, path: str, mode: PinMode, progress: Progress) -> ModelPin: ...
    def install_requirements(self, path: str, progress: Progress) -> None: ...


def resolve_pins(
    documents: Documents, capabilities: "Capabilities", models: LocalModels | None, mode: PinMode, progress: Progress
) -> Documents:
    """Return the documents with a pin for each model URI that can have one; a warning names the others.

    Raises UsageError for pickles that are not trusted, and for weights without their class. Unless `mode` is compare,
    requirements of Python models are installed for replicas on this machine. Without `models`, a path is not of this
    machine: on a cluster it is one of the image.
    """
    uris = check_models(documents, capabilities, here=models is not None, note=partial(progress, "Warning"))
    paths = {uri: local_path(uri) for uri in uris if is_local(uri)} if models is not None else {}
    pins = {uri: models.pin(path, mode, progress) for uri, path in paths.items() if models is not None}
    remote = [uri for uri in uris if scheme_of(uri) in REMOTE_SCHEMES]
    found: dict[str, ModelPin | str] = {
        uri: f"{scheme_of(uri)}:// cannot be pinned" for uri in uris if not is_local(uri)
    }
    for uri, pin in (found | (resolve_remote(remote) if remote else {})).items():
        if isinstance(pin, ModelPin):
            pins[uri] = pin
        else:
            progress("Warning", f"{redact_uri(uri)} is not pinned, a replica serves what is there at its start: {pin}")
    if mode != "compare" and models is not None and capabilities.target == LOCAL_CAPABILITIES["target"]:
        for path in paths.values():
            models.install_requirements(path, progress)
    return with_pins(documents, pins)


def check_models(
    documents: Documents, capabilities: "Capabilities", *, here: bool, note: Callable[[str], object]
) -> list[str]:
    """Return the model URIs without a pin, in order; `here`: paths are of this machine. `note` gets warnings.

    Raises InvalidDocument for what cannot be planned, UsageError for what replicas would refuse to load, PlatformError
    for a store whose library replicas on this machine lack.
    """
    plans, services = plan_documents(documents, capabilities).plans, documents.services
    known = {uri for service in services for uri in decode(service.annotations.get(ANNOTATION_PINS, ""))}
    loads = ((work, service) for plan, service in zip(plans, services, strict=True) for work in plan.workloads)
    unpinned = {uri: (work, service) for work, service in loads for uri in work.model_uris if uri not in known}
    for uri, (work, service) in unpinned.items():
        if scheme_of(uri) in REMOTE_SCHEMES:
            library = _LIBRARIES.get(scheme_of(uri)) if capabilities.target == LOCAL_CAPABILITIES["target"] else None
            if library and find_spec(library) is None:
                message = f"{redact_uri(uri)} needs {library}, which is not installed"
                raise PlatformError(message, install_command("cloud"))
            check_stored_pickle(uri, work, service)
        elif here and is_local(uri):
            check_model(local_path(uri), work, service)
            if (model := detect(Path(local_path(uri)))) is not None and (rows := fixed_batch(model.file)):
                size = f"{model.file.name} has a fixed batch dimension of {rows}"
                note(f"{size}: requests of other sizes are refused; export it with a dynamic one (dynamic_shapes)")
    return list(unpinned)


def without_pins(documents: Documents) -> Documents:
    """Return the documents without pins, as those of files are: their content is read anew."""
    return replace(documents, services=tuple(_annotated(service, "") for service in documents.services))


def with_pins(documents: Documents, pins: Mapping[str, ModelPin]) -> Documents:
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
