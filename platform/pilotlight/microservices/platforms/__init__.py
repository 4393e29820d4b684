"""Platforms that run microservices: targets, or one module each; one line in PLATFORMS."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Final, Protocol, cast

from pilotlight.errors import UsageError
from pilotlight.microservices.registry.records import ALIASES, Entry, Job, PlatformStatus
from pilotlight.targets.options import Option

__all__ = ["PLATFORMS", "Option", "Platform", "platform"]

TARGET: Final = ""  # the target of this name runs it
# name: module, and TAO_EXECUTION_BACKEND of its containers
PLATFORMS: Final[Mapping[str, tuple[str, str]]] = {
    "local": (TARGET, "local-docker"),
    "docker": (TARGET, "local-docker"),
    "kubernetes": ("cluster_service", "local-k8s"),
    "slurm": (TARGET, "slurm"),
    "lepton": (TARGET, "lepton"),
    "brev": (TARGET, "local-docker"),
}


class Platform(Protocol):
    """A platform; calls block and raise errors of `pilotlight.errors` only. Modules here have `make(environ)`."""

    name: str
    options: tuple[Option, ...]
    own_ports: bool  # whether `Job.host_port` is a port of this machine that must be free

    def preflight(self, job: Job) -> None:
        """Check requirements before anything is started. Raise with the problem and its fix."""

    def start(self, job: Job) -> Entry:
        """Start the job; return once the platform has accepted it. The model may still load for long."""

    def status(self, job_id: str, entry: Entry) -> PlatformStatus: ...

    def stop(self, job_id: str, entry: Entry) -> None:
        """Stop it and remove everything that `start` created; no error if it does not exist."""

    def open_route(self, job_id: str, entry: Entry) -> AbstractContextManager[str]:
        """Yield the base URL for requests, valid inside the context: it may be a tunnel."""


def platform(name: str, environ: Mapping[str, str]) -> Platform:
    known = ALIASES.get(name, name)
    if known not in PLATFORMS:
        raise UsageError(f"no platform is called {name}; there are {', '.join(PLATFORMS)}")
    if PLATFORMS[known][0] == TARGET:
        from pilotlight.microservices.platforms.target_service import TargetService

        return TargetService(known, environ)
    module: Any = import_module(f"{__name__}.{PLATFORMS[known][0]}")
    return cast(Platform, module.make(environ))
