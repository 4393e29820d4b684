"""Table of the launchers other than that of `local`, imported when the first service uses them; their cleanup."""

import shutil
from collections.abc import Iterable, Mapping
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
# Files below `run` of a home, from the start of a replica until it is known to have ended.
TRACES: Final[Mapping[str, str]] = {"docker": "*.container", "slurm": "slurm/*"}


def factories(launchers: Mapping[str, str] = LAUNCHERS) -> dict[str, LauncherFactory]:
    return {name: partial(_make, path) for name, path in launchers.items()}


def _make(path: str, processes: ProcessLauncher) -> Launcher:
    module, _, name = path.partition(":")
    launcher: Launcher = getattr(import_module(module), name)(processes)
    return launcher


async def sweep_all(home: Home, launchers: Mapping[str, str] = LAUNCHERS) -> list[str]:
    """End what all launchers run for a home that has no control process, and remove its traces; return the errors.

    One that has left no trace in the home may not be installed or configured, which is no error.
    """
    errors = []
    for name, make in factories(launchers).items():
        try:
            await make(ProcessLauncher(home, "")).sweep(())
            for trace in list(home.run.glob(TRACES[name])):
                shutil.rmtree(trace) if trace.is_dir() else trace.unlink()
        except (PlatformError, OSError) as error:
            if has_traces(home, [name]):
                errors.append(f"{name}: {error}")
    return errors


async def describe_running(home: Home, launchers: Mapping[str, str] = LAUNCHERS) -> list[str]:
    """Return a phrase for each launcher that runs, or may run, replicas for a home that has no control process."""
    phrases = []
    for name, make in factories(launchers).items():
        if not has_traces(home, [name]):
            continue
        try:
            if replicas := await make(ProcessLauncher(home, "")).running():
                phrases.append(f"{name} runs {', '.join(sorted(replicas))}")
        except (PlatformError, OSError) as error:
            phrases.append(f"{name} may run replicas ({error})")
    return phrases


def has_traces(home: Home, launchers: Iterable[str] = TRACES) -> bool:
    """Whether replicas of these launchers may run for a home."""
    return any(any(home.run.glob(TRACES[name])) for name in launchers)
