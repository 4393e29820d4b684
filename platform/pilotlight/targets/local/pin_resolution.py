"""Pins of the model URIs of documents, resolved before a plan: local models are copied, remote ones keep a version.

`platformctl` and the console share it; each shows the progress in its own way.
"""

from functools import partial
from typing import Literal, Protocol

from pilotlight.contract import LOCAL_CAPABILITIES
from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import REMOTE_SCHEMES, ModelPin, is_local, local_path, scheme_of
from pilotlight.plan.types import Capabilities
from pilotlight.release.model_pins import unpinned_uris, with_pins
from pilotlight.release.plan_and_render import Documents
from pilotlight.release.remote_pins import resolve_remote
from pilotlight.targets.local import model_environments
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.model_snapshots import ModelSnapshots

# `snapshot` copies local models for the revision, `record` serves them in place, `compare` stores nothing.
PinMode = Literal["snapshot", "record", "compare"]


class Progress(Protocol):
    """Callback for steps: Reading (a path, in bytes), Installing, Installed, Warning."""

    def __call__(self, step: str, text: str, done: int = 0, total: int = 0, /) -> None: ...


def resolve_pins(
    documents: Documents, capabilities: Capabilities, home: Home | None, mode: PinMode, progress: Progress
) -> Documents:
    """Return the documents with a pin for each model URI that can have one; a warning names the others.

    Unless `mode` is compare, requirements of Python models are installed for replicas on this machine. Without a home,
    a path is not of this machine: on a cluster it is one of the image.
    """
    uris = unpinned_uris(documents, capabilities)
    local = {uri: local_path(uri) for uri in uris if is_local(uri)} if home is not None else {}
    pins = {uri: pin_local(path, home, mode, progress) for uri, path in local.items() if home is not None}
    remote = [uri for uri in uris if scheme_of(uri) in REMOTE_SCHEMES]
    resolved = {uri: f"{scheme_of(uri)}:// cannot be pinned" for uri in uris if not is_local(uri)}
    for uri, pin in {**resolved, **(resolve_remote(remote) if remote else {})}.items():
        if isinstance(pin, ModelPin):
            pins[uri] = pin
        else:
            progress("Warning", f"a revision serves the content of {uri} at its start: {pin}")
    if mode != "compare" and home is not None and capabilities.target == LOCAL_CAPABILITIES["target"]:
        for path in local.values():
            _install_requirements(path, home, progress)
    return with_pins(documents, pins)


def pin_local(path: str, home: Home, mode: PinMode, progress: Progress) -> ModelPin:
    """Return the pin of a local model. Raise PlatformError if it cannot be read or copied."""
    snapshots, reading = ModelSnapshots(home.models), partial(progress, "Reading", path)
    try:
        if mode == "compare":
            return snapshots.digest(path, reading)
        return snapshots.pin(path, snapshot=mode == "snapshot", progress=reading)
    except OSError as error:
        place = error.filename or path
        message = f"storageUri: {path} cannot be read or copied: {place}: {error.strerror or error}"
        hint = "check the path on the machine of the platform; platformctl deploy --no-snapshot copies nothing"
        raise PlatformError(message, hint) from error


def _install_requirements(path: str, home: Home, progress: Progress) -> None:
    """Build the environment of a Python model before it is deployed; other targets do so where a replica runs."""
    requirements = model_environments.find(path)
    if requirements is None:
        return
    try:
        environment = model_environments.ensure(requirements, home, partial(progress, "Installing"))
    except OSError as error:
        raise PlatformError(f"{requirements.path} cannot be installed: {error}") from error
    progress("Installed", f"{requirements.path} in {environment}")
