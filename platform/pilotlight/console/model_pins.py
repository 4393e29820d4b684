"""Pins of the models of a manifest from the browser: snapshots of those on this machine, versions of remote ones.

The same as `platformctl deploy` does it, which reports to a terminal.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

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

Log = Callable[[str, str], None]  # step, text
SHOWN_STEPS: Final = 20  # of the progress of reading one model


def pin_models(
    documents: Documents, capabilities: Capabilities, home: Home | None, log: Log | None = None
) -> Documents:
    """Return the documents with a pin for each model URI that can have one.

    With `log`, which gets the progress, a deploy is prepared: local models are copied and their requirements installed.
    Without a home, models are not of this machine.
    """
    uris = unpinned_uris(documents, capabilities)
    local = [uri for uri in uris if is_local(uri)] if home is not None else []
    pins = {uri: _pin_local(local_path(uri), home, log) for uri in local if home is not None}
    remote = [uri for uri in uris if scheme_of(uri) in REMOTE_SCHEMES]
    for uri, pin in resolve_remote(remote).items() if remote else ():
        if isinstance(pin, ModelPin):
            pins[uri] = pin
        elif log is not None:
            log("Warning", f"a revision serves the content of {uri} at its start: {pin}")
    if log is not None and home is not None and capabilities.target == LOCAL_CAPABILITIES["target"]:
        for uri in local:
            _install_requirements(local_path(uri), home, log)
    return with_pins(documents, pins)


def _pin_local(path: str, home: Home, log: Log | None) -> ModelPin:
    snapshots, shown = ModelSnapshots(home.models), 0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        step = SHOWN_STEPS * done // max(total, 1)
        if log is not None and step > shown:
            shown = step
            log("Reading", f"{path}: {100 * done // total} %")

    try:
        return snapshots.digest(path) if log is None else snapshots.pin(path, snapshot=True, progress=progress)
    except OSError as error:
        place = error.filename or path
        message = f"storageUri: {path} cannot be read or copied: {place}: {error.strerror or error}"
        raise PlatformError(message, "check the path; it is of the machine that the platform runs on") from error


def _install_requirements(path: str, home: Home, log: Log) -> None:
    requirements = model_environments.find(path)
    if requirements is None:
        return
    try:
        model_environments.ensure(requirements, home, partial(log, "Installing"))
    except OSError as error:
        raise PlatformError(f"{requirements.path} cannot be installed: {error}") from error
