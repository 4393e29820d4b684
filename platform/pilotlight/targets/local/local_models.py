"""Models of this machine before a deploy: pinned by a snapshot, their requirements installed."""

from functools import partial
from typing import NamedTuple

from pilotlight.errors import PlatformError
from pilotlight.k8s.model_pins import ModelPin
from pilotlight.release.model_pins import PinMode, Progress
from pilotlight.targets.local import model_environments
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.model_snapshots import ModelSnapshots


class LocalModels(NamedTuple):
    """Models whose snapshots and environments are in a home."""

    home: Home

    def pin(self, path: str, mode: PinMode, progress: Progress) -> ModelPin:
        """Return the pin of a model. Raise PlatformError if it cannot be read or copied."""
        snapshots, reading = ModelSnapshots(self.home.models), partial(progress, "Reading", path)
        try:
            if mode == "compare":
                return snapshots.digest(path, reading)
            pin = snapshots.pin(path, snapshot=mode == "snapshot", progress=reading)
        except OSError as error:
            place = error.filename or path
            message = f"storageUri: {path} cannot be read or copied: {place}: {error.strerror or error}"
            hint = "check the path on the machine of the platform; platformctl deploy --no-snapshot copies nothing"
            raise PlatformError(message, hint) from error
        if mode == "record" and snapshots.content(pin, path) != path:
            progress("Warning", f"{path} is served from an existing snapshot of the same content, not in place")
        return pin

    def install_requirements(self, path: str, progress: Progress) -> None:
        """Build the environment of a Python model; other targets do so where a replica runs."""
        requirements = model_environments.find(path)
        if requirements is None:
            return
        try:
            environment = model_environments.ensure(requirements, self.home, partial(progress, "Installing"))
        except OSError as error:
            raise PlatformError(f"{requirements.path} cannot be installed: {error}") from error
        progress("Installed", f"{requirements.path} in {environment}")
