"""Where microservices run: one file for each platform, one line each in PLATFORMS."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Final, Protocol, cast

from msgspec import Struct

from pilotlight.errors import UsageError
from pilotlight.microservices.model import Entry, Job, Seen

# name: module and the value of TAO_EXECUTION_BACKEND that containers are told
PLATFORMS: Final[Mapping[str, tuple[str, str]]] = {
    "local": ("local", "local-docker"),
    "docker": ("docker", "local-docker"),
    "kubernetes": ("kubernetes", "local-k8s"),
    "slurm": ("slurm", "slurm"),
    "lepton": ("lepton", "lepton"),
    "brev": ("brev", "local-docker"),
}
ALIASES: Final[Mapping[str, str]] = {"local-docker": "docker"}


class Option(Struct, frozen=True):
    """An input that a platform takes: `--partition`, or the first of `variables` that is set."""

    name: str
    help: str
    required: bool = False
    variables: tuple[str, ...] = ()
    default: str = ""
    needed_for: str = ""  # required for images whose name begins so


class Platform(Protocol):
    """Blocking. Raises errors of `pilotlight.errors` only. A module of this package has `make(environ)`."""

    name: str
    options: tuple[Option, ...]
    own_ports: bool  # whether `Job.host_port` is a port of this machine that must be free

    def preflight(self, job: Job) -> None:
        """Raises with what is missing and what to do; nothing was started."""

    def start(self, job: Job) -> Entry:
        """Returns once the platform has accepted it; the model may load for a long time yet."""

    def look(self, job_id: str, entry: Entry) -> Seen: ...

    def stop(self, job_id: str, entry: Entry) -> None:
        """Ends it with everything that `start` made; no error where it is gone already."""

    def way(self, job_id: str, entry: Entry) -> AbstractContextManager[str]:
        """What the URLs of requests begin with, held while they are sent: it may be a tunnel."""


def platform(name: str, environ: Mapping[str, str]) -> Platform:
    known = ALIASES.get(name, name)
    if known not in PLATFORMS:
        raise UsageError(f"no platform is called {name}; there are {', '.join(PLATFORMS)}")
    module: Any = import_module(f"{__name__}.{PLATFORMS[known][0]}")
    return cast(Platform, module.make(environ))
