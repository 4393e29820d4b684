"""Validation and registration of workspaces, experiments and jobs, for REST and `platformctl microservice register`.

A registrar acts for one org. `trusted`: the operator, who may name folders and variables that an org may not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from pilotlight.errors import Conflict, NotFound, PlatformError, UsageError
from pilotlight.microservices import kinds, workspaces
from pilotlight.microservices.directory import Directory
from pilotlight.microservices.media.limits import Limits
from pilotlight.microservices.model import Workspace
from pilotlight.microservices.records import (
    DONE,
    NOT_STOPPED,
    Experiment,
    JobRecord,
    Kind,
    Status,
    StoredWorkspace,
    check_id,
    check_org,
)
from pilotlight.targets.local.chronicle import utc

DEFAULT_LIMITS: Final = Limits()
DEFAULT_MAX: Final = "64"  # concurrent microservices of an org
ENV_MOST: Final = "PILOTLIGHT_API_MAX_MICROSERVICES"
MANAGED_KINDS: Final = ("inference_microservice", "batch")  # created by starting them only


@dataclass(frozen=True, slots=True)
class Registrar:
    directory: Directory
    org: str
    limits: Limits = DEFAULT_LIMITS
    trusted: bool = False
    now: Callable[[], str] = utc

    def workspace(self, storage: Workspace, name: str = "", id: str = "") -> StoredWorkspace:  # noqa: A002
        check_org(self.org)
        workspaces.check(self.org, storage, self.limits, self.trusted)
        return self.directory.add_workspace(
            StoredWorkspace(_id("id", id), self.org, name or storage.uri, storage, self.now())
        )

    def experiment(self, network_arch: str, workspace: str = "", name: str = "", id: str = "") -> Experiment:  # noqa: A002
        check_org(self.org)
        kinds.schema(network_arch)
        record = Experiment(_id("id", id), self.org, network_arch, workspace, name or network_arch, self.now())
        return self.directory.add_experiment(record)

    def job(
        self, experiment: str, kind: Kind, status: Status, artifact: str, parent: str = "", id: str = ""  # noqa: A002
    ) -> JobRecord:  # fmt: skip
        """Register a training job that ran elsewhere, with its model."""
        if kind in MANAGED_KINDS:
            raise UsageError(
                f"kind = {kind}, must be train: {' and '.join(MANAGED_KINDS)} jobs are made by starting them"
            )
        record = self.directory.experiment(self.org, experiment)
        if artifact:
            self._check_artifact(record, artifact)
        elif status == DONE:
            raise UsageError("artifact is missing: a training that is done has a model")
        now = self.now()
        job = JobRecord(_id("id", id), self.org, experiment, kind, status, now, now, artifact, parent)
        return self.directory.add_job(job)

    def change(self, experiment: str, id: str, status: Status | None, artifact: str | None) -> JobRecord:  # noqa: A002
        job = get_job(self.directory, self.org, experiment, id)
        if job.kind in MANAGED_KINDS:
            raise Conflict(f"job {id} is of the kind {job.kind}, which changes by itself", "stop it, or cancel it")
        if artifact:
            self._check_artifact(self.directory.experiment(self.org, experiment), artifact)
        changes = {"status": status or job.status, "artifact": artifact or job.artifact}
        if changes["status"] == DONE and not changes["artifact"]:
            raise UsageError("artifact is missing: a training that is done has a model")
        return self.directory.update_job(self.org, id, self.now(), **changes)

    def _check_artifact(self, experiment: Experiment, artifact: str) -> None:
        stored = self.directory.workspace(self.org, experiment.workspace) if experiment.workspace else None
        workspaces.resolve_artifact(stored.storage if stored else None, artifact, self.trusted)


def get_job(directory: Directory, org: str, experiment: str, id: str) -> JobRecord:  # noqa: A002
    """Return a job of this experiment. Raise NotFound for a job of another one."""
    job = directory.job(org, id)
    if job.experiment != experiment:
        raise NotFound(f"experiment {experiment} of org {org} has no job {id}")
    return job


def get_parent(directory: Directory, org: str, experiment: str, id: str) -> JobRecord:  # noqa: A002
    """Return the finished training job that a microservice is started from. Raise where it is not one."""
    directory.experiment(org, experiment)
    try:
        job = directory.job(org, id)
    except NotFound:
        raise NotFound(f"parent_id = {id}: org {org} has no such job", "register the training job first") from None
    if job.experiment != experiment:
        raise UsageError(f"parent_id = {id} is a job of experiment {job.experiment}, not of {experiment}")
    if job.kind != "train":
        raise UsageError(f"parent_id = {id} is a job of the kind {job.kind}, must be a training")
    if job.status != DONE:
        raise Conflict(f"parent_id = {id} is {job.status}, must be done", "wait until the training has finished")
    return job


def check_quota(directory: Directory, org: str, environ: Mapping[str, str]) -> None:
    """Raise Conflict where the org has reached its quota of microservices; failed ones count until stopped."""
    maximum = environ.get(ENV_MOST) or DEFAULT_MAX
    if not maximum.isdecimal():
        raise PlatformError(f"{ENV_MOST} = {maximum}, must be a number", "the operator of this API sets it")
    existing = directory.jobs_of_kind("inference_microservice", *NOT_STOPPED)
    if sum(record.org == org for record in existing) >= int(maximum):
        raise Conflict(
            f"org {org} has {maximum} inference microservices, which is the most that it may", "stop one first"
        )


def _id(field: str, value: str) -> str:
    return check_id(field, value) if value else str(uuid4())
