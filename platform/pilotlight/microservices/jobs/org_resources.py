"""Workspaces, experiments and jobs of an org: validation, registration, and how a microservice reads its model.

Credentials are references. An org may refer to its own variables and secrets, to folders below
PILOTLIGHT_WORKSPACE_ROOTS, and to stores that media may be fetched from; the operator's own token may name anything.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

from msgspec import Struct

from pilotlight.errors import Conflict, NotFound, PlatformError, UsageError
from pilotlight.k8s.timestamps import utc_now
from pilotlight.microservices.jobs.model_isolation import check_name
from pilotlight.microservices.media import ssrf_safe_client
from pilotlight.microservices.media.limits import ENV_WORKSPACES, LOG, Limits, MediaError
from pilotlight.microservices.media.references import BUCKET, WebAddress, parse_web
from pilotlight.microservices.registry import container_command, model_kinds, records, secret_references
from pilotlight.microservices.registry.container_command import HUB
from pilotlight.microservices.registry.database import OrgStore
from pilotlight.microservices.registry.records import (
    Experiment,
    Isolation,
    JobRecord,
    Kind,
    Status,
    StoredWorkspace,
    Workspace,
)

# A workspace's credentials by the variables that the predictor's storage reads.
VARIABLES: Final[Mapping[str, str]] = {
    "access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY", "session_token": "AWS_SESSION_TOKEN",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY", "sas_token": "AZURE_STORAGE_SAS_TOKEN",
}  # fmt: skip
SCHEMES: Final = ("s3://", "az://", "https://", "file:///", "/")
ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT")
# They become part of host names, as buckets do.
REGION: Final = re.compile(r"[A-Za-z0-9_-]{0,64}")
ACCOUNT: Final = re.compile(r"([a-z0-9]{3,24})?")
NO_LIMITS: Final = Limits()  # no folder, host or network is allowed
ENV_MOST: Final = "PILOTLIGHT_API_MAX_MICROSERVICES"  # of an org at once
ENV_RECORDS: Final = "PILOTLIGHT_API_MAX_RECORDS"  # of an org: workspaces, experiments, and jobs
DEFAULT_QUOTAS: Final = {ENV_MOST: "64", ENV_RECORDS: "1000"}
MANAGED_KINDS: Final = ("inference_microservice", "batch")  # created by starting them only


class Access(Struct, frozen=True):
    """Environment variables of a microservice; values of `secret` must not be logged or stored."""

    plain: Mapping[str, str]
    secret: Mapping[str, str]


def check(org: str, workspace: Workspace, limits: Limits, trusted: bool) -> None:
    """Raise with the field and what it must be. `trusted`: a workspace of the operator."""
    if not workspace.uri.startswith(SCHEMES):
        raise UsageError(f"uri = {workspace.uri}, must begin with s3://, az://, https://, file:/// or /")
    scheme, _, rest = workspace.uri.partition("://")
    bucket = rest.partition("/")[0]
    if "@" in bucket:
        raise UsageError("uri has a user or a password in it, must be an address alone")
    if scheme in {"s3", "az"} and not BUCKET.fullmatch(bucket):
        raise UsageError(f"uri = {workspace.uri}, must be {scheme}://bucket or {scheme}://bucket/path")
    records.check_pattern(REGION, "region", workspace.region, "the name of a region, such as us-east-1")
    records.check_pattern(ACCOUNT, "account", workspace.account, "3 to 24 lower-case letters and digits")
    secret_references.check(workspace)
    if trusted:
        return
    _check_addresses(workspace, limits)
    for name, reference in workspace.credentials.items():
        # Keys of a mounted Secret have no slash and orgs have no dot, so neither prefix matches another org's files.
        if not reference.startswith((f"env:{variable_prefix(org)}", f"file:{org}/", f"file:{org}.")):
            raise UsageError(
                f"credentials.{name} must be env:{variable_prefix(org)}NAME, file:{org}/NAME or file:{org}.NAME"
            )
    check_folder(org, workspace, limits)


def check_folder(org: str, workspace: Workspace, limits: Limits) -> None:
    """Raise where the folder of an org's workspace leads, by links too, out of the org's folders."""
    folder = local_path(workspace.uri)
    # Batch jobs write to a workspace, so roots of media are not enough.
    if folder is not None and not any(folder.resolve().is_relative_to(each) for each in _org_folders(org, limits)):
        raise UsageError(
            f"uri = {workspace.uri}, must be in a folder that the operator allows for {org}",
            f"{ENV_WORKSPACES} = ROOT allows ROOT/{org}; or create it with the platform's token",
        )


def _org_folders(org: str, limits: Limits) -> list[Path]:
    return [Path(root).resolve() / org for root in limits.workspaces]


def _check_addresses(workspace: Workspace, limits: Limits) -> None:
    """Check addresses without resolving host names, which `check_stores` does at the start."""
    named = {"endpoint": workspace.endpoint, "uri": workspace.uri if workspace.uri.startswith("https://") else ""}
    for field, text in named.items():
        if not text:
            continue
        try:
            address = _address(text)
            ssrf_safe_client.check_listed(address, limits, trusted=True)
        except MediaError as error:
            raise UsageError(f"{field} = {text} {error.message}") from error
        with suppress(ValueError):  # of a name
            if why := ssrf_safe_client.denial_reason(address.host, limits.permitted()):
                raise UsageError(f"{field} = {text}: {why}", "the operator can allow it with PILOTLIGHT_MEDIA_NETWORKS")


def _address(text: str) -> WebAddress:
    if not text.startswith(("https://", "http://")):
        raise MediaError("is not an address: write https://host")
    return parse_web(text)


def check_stores(
    model: str, plain: Mapping[str, str], limits: Limits, resolver: ssrf_safe_client.Resolve = ssrf_safe_client.resolve
) -> None:
    """Raise where a host that the model is read from is private and not permitted. Blocking.

    Called before each start, since DNS changes. `plain` is `Access.plain`.
    """
    endpoints = [plain[name] for name in ENDPOINTS if name in plain]
    for text in [*endpoints, *([model] if model.startswith(("https://", "http://")) else ())]:
        try:
            ssrf_safe_client.check_address(_address(text), limits, trusted=True, resolver=resolver)
        except MediaError as error:
            LOG.warning("a model's storage was rejected: %s", error.reason)
            raise UsageError(f"the model's storage {text.partition('?')[0]} {error.message}") from error


def variable_prefix(org: str) -> str:
    """Return the prefix of variables that an org may refer to.

    No prefix is the beginning of another org's: it ends with two underscores, and names have no double hyphens.
    """
    return f"WORKSPACE_{org.upper().replace('-', '_')}__"


def local_path(uri: str) -> Path | None:
    """Return the folder on this machine; None for other storage."""
    return Path(uri.removeprefix("file://")) if uri.startswith(("/", "file:///")) else None


def resolve_artifact(workspace: Workspace | None, artifact: str, trusted: bool = False) -> str:
    """Return the model's full path or URI. Raise where it is outside of the workspace, unless `trusted`."""
    if not artifact:
        raise UsageError("artifact is missing: the job has no model location")
    if artifact.startswith(HUB):
        return artifact
    base = workspace.base if workspace else ""
    if "://" in artifact or artifact.startswith("/"):
        path = artifact.removeprefix("file://")
        if trusted or (base and path.startswith(f"{base}/") and ".." not in PurePosixPath(path).parts):
            return path
        raise UsageError(f"artifact = {artifact}, must lie in the workspace {base or '(there is none)'}")
    if ".." in PurePosixPath(artifact).parts:
        raise UsageError(f"artifact = {artifact}, must not have .. in it")
    if not base:
        raise UsageError(f"artifact = {artifact} is relative, and the experiment has no workspace")
    return f"{base}/{artifact}"


def locate_model(org: str, workspace: StoredWorkspace | None, artifact: str, limits: Limits, trusted: bool) -> str:
    """Return the model's URI, or its path without links. Raise where it is outside of the workspace, unless `trusted`.

    Called when a job is registered and again at each start, since links change.
    """
    model = resolve_artifact(workspace.storage if workspace else None, artifact, trusted)
    path = local_path(model)
    if trusted or path is None or workspace is None:
        return model
    own = workspace.by_operator
    folders = [Path(local_path(workspace.storage.uri) or "/").resolve()] if own else _org_folders(org, limits)
    real = path.resolve()
    if not any(real.is_relative_to(folder) for folder in folders):
        raise UsageError(f"artifact = {artifact}, is outside of the workspace {workspace.storage.uri} by a link")
    return str(real)


def access(workspace: Workspace | None, environ: Mapping[str, str]) -> Access:
    """Return the variables to read the workspace. Raise with the reference of a missing credential."""
    if workspace is None:
        return Access({}, {})
    secret = {VARIABLES[name]: value for name, value in secret_references.values(workspace, environ).items()}
    plain: dict[str, str] = {}
    if workspace.uri.startswith("s3://"):
        plain["AWS_REGION"] = workspace.region
        plain |= {"AWS_ENDPOINT_URL": workspace.endpoint} if workspace.endpoint else {}
        plain |= {"AWS_SKIP_SIGNATURE": "true"} if not secret else {}
    if workspace.uri.startswith("az://"):
        plain |= {"AZURE_STORAGE_ACCOUNT_NAME": workspace.account} if workspace.account else {}
        plain |= {"AZURE_STORAGE_ENDPOINT": workspace.endpoint} if workspace.endpoint else {}
        plain |= {"AZURE_SKIP_SIGNATURE": "true"} if not secret else {}
    return Access(plain, secret)


@dataclass(frozen=True, slots=True)
class Registrar:
    """Registers records of one org. `trusted`: the operator, with folders and variables that an org may not name."""

    store: OrgStore
    org: str
    limits: Limits = NO_LIMITS
    trusted: bool = False
    isolation: Isolation = ""  # of the org's models
    max_records: int = 0  # of each kind; 0: no limit
    now: Callable[[], str] = utc_now

    def workspace(self, storage: Workspace, name: str = "", id: str = "") -> StoredWorkspace:  # noqa: A002
        records.check_org(self.org)
        check(self.org, storage, self.limits, self.trusted)
        record = StoredWorkspace(_id(id), self.org, name or storage.uri, storage, self.now(), self.trusted)
        return self.store.add_workspace(record, self.max_records)

    def experiment(
        self, network_arch: str, workspace: str = "", name: str = "", id: str = "", kind: str = ""  # noqa: A002
    ) -> Experiment:  # fmt: skip
        records.check_org(self.org)
        model_kinds.schema(network_arch, kind=kind)
        record = Experiment(_id(id), self.org, network_arch, workspace, name or network_arch, self.now(), kind)
        return self.store.add_experiment(record, self.max_records)

    def job(
        self, experiment: str, kind: Kind, status: Status, artifact: str, parent: str = "", id: str = ""  # noqa: A002
    ) -> JobRecord:  # fmt: skip
        """Register a training job that ran elsewhere, with its model."""
        if kind in MANAGED_KINDS:
            made = f"{' and '.join(MANAGED_KINDS)} jobs are created by starting them"
            raise UsageError(f"kind = {kind}, must be train: {made}")
        record = self.store.experiment(self.org, experiment)
        self._check_artifact(record, status, artifact)
        now, by = self.now(), self.trusted
        job = JobRecord(_id(id), self.org, experiment, kind, status, now, now, artifact, parent, by_operator=by)
        return self.store.add_job(job, self.max_records)

    def change(self, experiment: str, id: str, status: Status | None, artifact: str | None) -> JobRecord:  # noqa: A002
        job = get_job(self.store, self.org, experiment, id)
        if job.kind in MANAGED_KINDS:
            raise Conflict(f"job {id} is of the kind {job.kind}, which the platform updates", "stop it, or cancel it")
        new_status, new_artifact = status or job.status, artifact or job.artifact
        if artifact or not new_artifact:
            self._check_artifact(self.store.experiment(self.org, experiment), new_status, new_artifact)
        by_operator = self.trusted if artifact else job.by_operator
        changes = {"status": new_status, "artifact": new_artifact, "by_operator": by_operator}
        return self.store.update_job(self.org, id, self.now(), **changes)

    def _check_artifact(self, experiment: Experiment, status: Status, artifact: str) -> None:
        if artifact:
            workspace = self.store.workspace_of(experiment)
            model = locate_model(self.org, workspace, artifact, self.limits, self.trusted)
            check_name(self.org, model, "" if self.trusted else self.isolation)
        elif status == records.DONE:
            raise UsageError("artifact is missing: a finished training has a model")


def own_kind(network_arch: str, kind: str, environ: Mapping[str, str]) -> str:
    """Return `kind`, else that of the operator's own network, by its container's command; empty: the name tells it."""
    command = container_command.arch(network_arch, environ).command
    return kind or (command if command != network_arch and network_arch not in model_kinds.networks() else "")


def get_job(store: OrgStore, org: str, experiment: str, id: str) -> JobRecord:  # noqa: A002
    """Return a job of this experiment. Raise NotFound for a job of another one."""
    job = store.job(org, id)
    if job.experiment != experiment:
        raise NotFound(f"experiment {experiment} of org {org} has no job {id}")
    return job


def get_parent(store: OrgStore, org: str, experiment: str, id: str) -> JobRecord:  # noqa: A002
    """Return the finished training job that a microservice is started from. Raise where it is not one."""
    store.experiment(org, experiment)
    try:
        job = store.job(org, id)
    except NotFound:
        raise NotFound(f"parent_id = {id}: org {org} has no such job", "register the training job first") from None
    if job.experiment != experiment:
        raise UsageError(f"parent_id = {id} is a job of experiment {job.experiment}, not of {experiment}")
    if job.kind != "train":
        raise UsageError(f"parent_id = {id} is a job of the kind {job.kind}, must be a training")
    if job.status != records.DONE:
        raise Conflict(f"parent_id = {id} is {job.status}, must be done", "wait until the training has finished")
    return job


def quota(name: str, environ: Mapping[str, str]) -> int:
    """Return a quota of orgs that the operator may have set."""
    maximum = environ.get(name) or DEFAULT_QUOTAS[name]
    if not maximum.isdecimal():
        raise PlatformError(f"{name} = {maximum}, must be a number", "the operator of this API must set it")
    return int(maximum)


def check_quota(store: OrgStore, org: str, environ: Mapping[str, str]) -> None:
    """Raise Conflict where the org has reached its quota of microservices; failed ones count until stopped."""
    maximum = quota(ENV_MOST, environ)
    existing = store.jobs_of_kind("inference_microservice", *records.NOT_STOPPED)
    if sum(record.org == org for record in existing) >= maximum:
        problem = f"org {org} has {maximum} inference microservices, its limit"
        raise Conflict(problem, "stop one first")


def _id(value: str) -> str:
    return records.check_id("id", value) if value else str(uuid4())
