"""Conversion of a job record to a start request: its model, and access to its workspace."""

from collections.abc import Mapping

from msgspec import Struct

from pilotlight.microservices.jobs import model_isolation, org_resources
from pilotlight.microservices.jobs.launcher import StartRequest
from pilotlight.microservices.media.limits import limits_from
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import Isolation, JobRecord, StoredWorkspace


class PlatformSettings(Struct, frozen=True):
    """Platform on which the API starts microservices, with its environment and options."""

    platform: str = "local"
    environ: Mapping[str, str] = {}
    options: Mapping[str, str] = {}


def start_request_for(
    store: OrgStore, settings: PlatformSettings, record: JobRecord, num_gpus: int = 1
) -> tuple[StartRequest, Mapping[str, str]]:
    """Return the start request of a record, and the values of its workspace's credentials."""
    experiment = store.experiment(record.org, record.experiment)
    workspace = store.workspace_of(experiment)
    stored = workspace.storage if workspace else None
    model, isolation = model_of(settings, record, workspace)
    access = org_resources.access(stored if "://" in model else None, settings.environ)
    request = StartRequest(
        network_arch=experiment.network_arch, model_path=model, platform=settings.platform,
        num_gpus=num_gpus, options=platform_options(settings, record.org), env=access.plain,
        secrets=tuple(access.secret), remote=True, isolation=isolation,
        kind=experiment.kind,
    )  # fmt: skip
    return request, access.secret


def model_of(settings: PlatformSettings, record: JobRecord, workspace: StoredWorkspace | None) -> tuple[str, Isolation]:
    """Return the model of a job and how it runs. Raise where it is outside of the workspace by now."""
    limits = limits_from(settings.environ)
    model = org_resources.locate_model(record.org, workspace, record.artifact, limits, record.by_operator)
    if model_isolation.is_operators(record, workspace, model, limits):
        return model, ""
    return model, model_isolation.org_isolation(record.org, settings.platform, settings.options, settings.environ)


def platform_options(settings: PlatformSettings, org: str) -> dict[str, str]:
    """Return the options of an org's microservices: its namespace is the org, unless the operator set one."""
    return {"namespace": org, **settings.options}
