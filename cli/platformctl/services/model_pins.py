"""Resolve the content of model URIs before a plan: digests, snapshots, environments; versions of remote models."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from pilotlight.errors import PlatformError
from platformctl import output

if TYPE_CHECKING:
    from pilotlight.k8s.manifest import ObjectKey
    from pilotlight.k8s.model_pins import ModelPin
    from pilotlight.plan.types import Capabilities
    from pilotlight.release.plan_and_render import Documents

# `snapshot` keeps local models for the revision, `record` serves them where they are, `compare` keeps nothing.
PinMode = Literal["snapshot", "record", "compare"]
SHOWN_BYTES: Final = 64 << 20  # larger models show their progress


def resolve(documents: "Documents", capabilities: "Capabilities", mode: PinMode, *, local: bool) -> "Documents":
    """Return the documents with pins for all model URIs that have none; a note names those that cannot be pinned.

    `local`: they are for this machine; on a cluster a path is one of the image.
    """
    from pilotlight.contract import LOCAL_CAPABILITIES
    from pilotlight.k8s.model_pins import REMOTE_SCHEMES, is_local, local_path, scheme_of
    from pilotlight.release.model_pins import unpinned_uris, with_pins

    uris = unpinned_uris(documents, capabilities)
    pins = {uri: _pin_local(uri, mode) for uri in uris if is_local(uri) and local}
    reasons = {uri: f"{scheme_of(uri)}:// cannot be pinned" for uri in uris if not is_local(uri)}
    remote = [uri for uri in reasons if scheme_of(uri) in REMOTE_SCHEMES]
    if remote:
        from pilotlight.release.remote_pins import resolve_remote

        for uri, pin in resolve_remote(remote).items():
            if isinstance(pin, str):
                reasons[uri] = pin
            else:
                pins[uri] = pin
    for uri, reason in reasons.items():
        if uri not in pins:
            output.note(f"note: a revision serves whatever {uri} holds when it starts: {reason}")
    if mode != "compare" and capabilities.target == LOCAL_CAPABILITIES["target"]:
        for uri in filter(is_local, pins):
            _install_requirements(local_path(uri))
    return with_pins(documents, pins)


def check_stored(documents: "Documents", mode: PinMode) -> None:
    """Take lost snapshots of stored documents again from unchanged originals; note originals that have changed."""
    from pilotlight.k8s.model_pins import decode, is_local, local_path
    from pilotlight.k8s.names import ANNOTATION_PINS

    for service in documents.services:
        for uri, pin in decode(service.annotations.get(ANNOTATION_PINS, "")).items():
            if not is_local(uri) or not os.path.exists(local_path(uri)):
                continue
            if _pin_local(uri, "compare").digest == pin.digest:
                _pin_local(uri, mode)
            else:
                output.note(
                    f"{uri} has changed since it was deployed; the old files are served, -f FILE deploys the new"
                )


def _pin_local(uri: str, mode: PinMode) -> "ModelPin":
    from pilotlight.k8s.model_pins import local_path
    from pilotlight.targets.local.home_directory import home
    from pilotlight.targets.local.model_snapshots import ModelSnapshots

    path, snapshots = local_path(uri), ModelSnapshots(home().models)
    ticker = output.ProgressLog()
    progress = _progress(ticker, path)
    try:
        if mode == "compare":
            return snapshots.digest(path, progress)
        return snapshots.pin(path, snapshot=mode == "snapshot", progress=progress)
    except OSError as error:
        place = error.filename or path
        message = f"storageUri: {path} cannot be read or kept: {place}: {error.strerror or error}"
        raise PlatformError(message, "serve it where it is: platformctl deploy --no-snapshot") from error
    finally:
        ticker.close()


def _install_requirements(path: str) -> None:
    """Build the environment of a Python model before anything is deployed; other targets do so where a replica runs."""
    from pilotlight.targets.local import model_environments
    from pilotlight.targets.local.home_directory import home

    requirements = model_environments.find(path)
    if requirements is None:
        return
    ticker = output.ProgressLog()
    try:
        environment = model_environments.ensure(requirements, home(), partial(ticker.log, "Installing"))
        ticker.log("Installed", f"{requirements.path} in {environment}")
    except OSError as error:
        raise PlatformError(f"{requirements.path} cannot be installed: {error}") from error
    finally:
        ticker.close()


def _progress(ticker: output.ProgressLog, path: str) -> "Callable[[int, int], None]":
    def show(done: int, total: int) -> None:
        if total >= SHOWN_BYTES:
            ticker.log("Reading", path, output.bar(done, total))

    return show


def note_changed_models(changes: "Mapping[ObjectKey, Mapping[str, Sequence[str]]]") -> None:
    for uri, files in (item for models in changes.values() for item in models.items()):
        output.note(f"model {uri}: {', '.join(files)}")
