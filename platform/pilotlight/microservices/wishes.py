"""What a record of a microservice asks of a platform: its model and its workspace's access, read from the directory."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pilotlight.microservices import workspaces
from pilotlight.microservices.directory import Directory
from pilotlight.microservices.platforms import Platform
from pilotlight.microservices.records import JobRecord
from pilotlight.microservices.starting import Wish

NAMESPACE: Final = "namespace"


class Place(Struct, frozen=True):
    """Where the API starts microservices, and with what it may do so."""

    platform: str = "local"
    environ: Mapping[str, str] = {}
    options: Mapping[str, str] = {}
    num_gpus: int = 1


def wish_for(
    directory: Directory, place: Place, record: JobRecord, num_gpus: int = 0
) -> tuple[Wish, Mapping[str, str]]:
    """What a record of a microservice asks of a platform, and the values of its workspace's credentials."""
    experiment = directory.experiment(record.org, record.experiment)
    stored = directory.workspace(record.org, experiment.workspace).storage if experiment.workspace else None
    model = workspaces.locate(stored, record.artifact, trusted=True)  # judged when the job was added
    access = workspaces.access(stored if "://" in model else None, place.environ)
    wish = Wish(
        network_arch=experiment.network_arch, model_path=model, platform=place.platform,
        num_gpus=num_gpus or place.num_gpus, options=options_of(place, record.org), env=access.plain,
        secrets=tuple(access.secret), remote=True,
    )  # fmt: skip
    return wish, access.secret


def options_of(place: Place, org: str) -> dict[str, str]:
    """An org is a namespace, unless the operator has chosen one."""
    return {NAMESPACE: org, **place.options}


def known_options(at: Platform, options: Mapping[str, str]) -> dict[str, str]:
    """Without the namespace where a platform has no such."""
    names = {each.name for each in at.options}
    return {name: value for name, value in options.items() if name in names or name != NAMESPACE}
