"""Environments of the models of a home: `deploy` builds them, the launcher executes replicas in them.

A replica whose model is fetched, or that runs in a container, builds its own (predictor: repository/environment.py).
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from pilotlight.contract import ENV_MODEL_PATH, is_predictor_image
from pilotlight.errors import UsageError
from pilotlight.k8s.model_pins import ModelPin, is_local, local_path
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.manifests.service_spec_types import ContainerSpec
from pilotlight.targets.local.model_snapshots import ModelSnapshots
from pilotlight.wire.environments import requirements
from pilotlight.wire.environments.requirements import Requirements, RequirementsRefused

if TYPE_CHECKING:
    from pathlib import Path

    from pilotlight.wire.environments.environment import Progress


def find(model: str, *, links: bool = True) -> Requirements | None:
    """Return the requirements of the model at a path. Raise UsageError for what is not installed."""
    try:
        return requirements.find(model, links=links)
    except RequirementsRefused as error:
        raise UsageError(str(error), error.hint) from None


def of_container(container: ContainerSpec) -> Requirements | None:
    """Return the requirements of a predictor's local model."""
    model = container.env.get(ENV_MODEL_PATH, "")
    ours = is_predictor_image(container.image) and container.isolation != "data"  # which loads no code
    return find(local_path(model)) if ours and model and is_local(model) else None


def ensure(wanted: Requirements, home: Home, progress: "Progress") -> "Path":
    """Return the environment, built if it is missing. Blocking. Raise UsageError if it cannot be."""
    from pilotlight.wire.environments import environment

    try:
        return environment.ensure(wanted, home.environments, os.environ, progress)
    except RequirementsRefused as error:
        raise UsageError(str(error), error.hint) from None


def collect(home: Home, pins: Iterable[tuple[str, str]], now: float) -> list[str]:
    """Remove environments that no snapshot of `pins` (path and digest) needs and that were unused for long."""
    from pilotlight.wire.environments import environment

    needed, snapshots = set(), ModelSnapshots(home.models)
    for path, digest in pins:
        with suppress(RequirementsRefused):
            wanted = requirements.find(snapshots.content(ModelPin(digest), path))
            needed |= {environment.key_of(wanted)} if wanted is not None else set()
    return environment.collect(home.environments, needed, now)
