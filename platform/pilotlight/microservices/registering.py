"""Puts workspaces, experiments and jobs into the directory, judged first: by REST, `platformctl microservice register`.

A registrar acts for one org. `trusted` is the operator, who may name folders and variables that an org may not.
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
    FINISHED,
    THERE,
    Experiment,
    JobRecord,
    Kind,
    Status,
    StoredWorkspace,
    check_id,
    check_org,
)
from pilotlight.targets.local.chronicle import utc

NOTHING_OPEN: Final = Limits()
MOST: Final = "64"  # microservices of an org that are there at once
ENV_MOST: Final = "PILOTLIGHT_API_MAX_MICROSERVICES"
OURS: Final = ("inference_microservice", "batch")  # made by starting them, and never by hand


@dataclass(frozen=True, slots=True)
class Registrar:
    directory: Directory
    org: str
    limits: Limits = NOTHING_OPEN
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
        made = Experiment(_id("id", id), self.org, network_arch, workspace, name or network_arch, self.now())
        return self.directory.add_experiment(made)

    def job(
        self, experiment: str, kind: Kind, status: Status, artifact: str, parent: str = "", id: str = ""  # noqa: A002
    ) -> JobRecord:  # fmt: skip
        """One that ran elsewhere: a training, with its model."""
        if kind in OURS:
            raise UsageError(f"kind = {kind}, must be train: {' and '.join(OURS)} jobs are made by starting them")
        found = self.directory.experiment(self.org, experiment)
        if artifact:
            self._check_artifact(found, artifact)
        elif status == FINISHED:
            raise UsageError("artifact is missing: a training that is done has a model")
        now = self.now()
        made = JobRecord(_id("id", id), self.org, experiment, kind, status, now, now, artifact, parent)
        return self.directory.add_job(made)

    def change(self, experiment: str, id: str, status: Status | None, artifact: str | None) -> JobRecord:  # noqa: A002
        kept = job_of(self.directory, self.org, experiment, id)
        if kept.kind in OURS:
            raise Conflict(f"job {id} is of the kind {kept.kind}, which changes by itself", "stop it, or cancel it")
        if artifact:
            self._check_artifact(self.directory.experiment(self.org, experiment), artifact)
        changes = {"status": status or kept.status, "artifact": artifact or kept.artifact}
        if changes["status"] == FINISHED and not changes["artifact"]:
            raise UsageError("artifact is missing: a training that is done has a model")
        return self.directory.update_job(self.org, id, self.now(), **changes)

    def _check_artifact(self, experiment: Experiment, artifact: str) -> None:
        stored = self.directory.workspace(self.org, experiment.workspace) if experiment.workspace else None
        workspaces.locate(stored.storage if stored else None, artifact, self.trusted)


def job_of(directory: Directory, org: str, experiment: str, id: str) -> JobRecord:  # noqa: A002
    """One of this experiment; of another one, as if it were not there."""
    found = directory.job(org, id)
    if found.experiment != experiment:
        raise NotFound(f"experiment {experiment} of org {org} has no job {id}")
    return found


def parent_of(directory: Directory, org: str, experiment: str, id: str) -> JobRecord:  # noqa: A002
    """The finished training that a microservice is started from; raises with the reason where it is none."""
    directory.experiment(org, experiment)
    try:
        found = directory.job(org, id)
    except NotFound:
        raise NotFound(f"parent_id = {id}: org {org} has no such job", "register the training job first") from None
    if found.experiment != experiment:
        raise UsageError(f"parent_id = {id} is a job of experiment {found.experiment}, not of {experiment}")
    if found.kind != "train":
        raise UsageError(f"parent_id = {id} is a job of the kind {found.kind}, must be a training")
    if found.status != FINISHED:
        raise Conflict(f"parent_id = {id} is {found.status}, must be done", "wait until the training has finished")
    return found


def admit(directory: Directory, org: str, environ: Mapping[str, str]) -> None:
    """Refuses a further microservice to an org that has as many as it may; those that failed count until stopped."""
    most = environ.get(ENV_MOST) or MOST
    if not most.isdecimal():
        raise PlatformError(f"{ENV_MOST} = {most}, must be a number", "the operator of this API sets it")
    there = directory.of_kind("inference_microservice", *THERE)
    if sum(record.org == org for record in there) >= int(most):
        raise Conflict(f"org {org} has {most} inference microservices, which is the most that it may", "stop one first")


def _id(field: str, given: str) -> str:
    return check_id(field, given) if given else str(uuid4())
