"""Launchers other than that of `local`, imported when the first service uses them."""

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.targets.local.home_directory import Home
from pilotlight.targets.local.supervisor.launcher import Launcher
from pilotlight.targets.local.supervisor.process_launcher import ProcessLauncher
from pilotlight.targets.local.supervisor.supervisor import LauncherFactory

# `module:class` by target; the class is called with the ProcessLauncher.
LAUNCHERS: Final[Mapping[str, str]] = {
    "docker": "pilotlight.targets.docker.launcher:DockerLauncher",
    "slurm": "pilotlight.targets.slurm.launcher:SlurmLauncher",
}


def factories(launchers: Mapping[str, str] = LAUNCHERS) -> dict[str, LauncherFactory]:
    return {name: partial(_make, path) for name, path in launchers.items()}


def _make(path: str, processes: ProcessLauncher) -> Launcher:
    module, _, name = path.partition(":")
    launcher: Launcher = getattr(import_module(module), name)(processes)
    return launcher


async def sweep_all(home: Home, launchers: Mapping[str, str] = LAUNCHERS) -> list[str]:
    """End what all launchers run for a home that has no control process; return the errors."""
    errors = []
    for name, make in factories(launchers).items():
        try:
            await make(ProcessLauncher(home, "")).sweep(())
        except (PlatformError, OSError) as error:
            errors.append(f"{name}: {error}")
    return errors
