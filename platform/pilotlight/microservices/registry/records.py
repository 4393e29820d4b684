"""Data types of a microservice: job, registry entry, platform status, workspace, and the records of an org."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from pilotlight.errors import UsageError

State = Literal["pending", "running", "failed", "stopped", "gone", "unknown"]  # unknown: the platform is unreachable
Kind = Literal["train", "inference_microservice", "batch"]
Status = Literal["pending", "running", "done", "error", "canceled", "stopping", "stopped"]
# How a model runs: "": as the operator's own; an org's as a process of this machine without code of the model ("data")
# or with it ("sandbox"), by its platform ("container"), or not at all.
Isolation = Literal["", "data", "sandbox", "container", "refused"]

DONE: Final = "done"
ALIASES: Final[Mapping[str, str]] = {"local-docker": "docker"}  # platforms by the words of the registry file


class Platform(Struct, frozen=True):
    """What microservices need to know of the target of this name, beyond its interface and its module."""

    backend: str  # TAO_EXECUTION_BACKEND of its containers
    handle: str = ""  # field of `Entry` with the name of its job, endpoint or instance
    ports: Literal["", "machine", "instance"] = ""  # whose host ports its URL has; else only the target knows the route
    fetches_models: bool = False  # for images that read no stores
    shares_files: bool = False  # with this machine, so relative paths are resolved here
    mounts_by_document: bool = False  # the option `mounts` becomes volumes of the document
    replaces_entry_point: bool = False  # entry points of images prepare docker's machine
    secrets_by_name: bool = False  # a secret is the workspace's own of that name


PLATFORMS: Final[Mapping[str, Platform]] = {
    "local": Platform("local-docker", ports="machine", shares_files=True),
    "docker": Platform("local-docker", ports="machine", fetches_models=True, mounts_by_document=True),
    "kubernetes": Platform("local-k8s", fetches_models=True, replaces_entry_point=True),
    "slurm": Platform("slurm", "platform_job_id", fetches_models=True, shares_files=True),
    "lepton": Platform("lepton", "platform_job_id", replaces_entry_point=True, secrets_by_name=True),
    "brev": Platform("local-docker", "instance_id", ports="instance", mounts_by_document=True),
}
PHASES: Final[Mapping[State, str]] = {
    "pending": "Pending", "running": "Running", "failed": "Failed", "stopped": "Succeeded", "gone": "Unknown",
    "unknown": "Unknown",
}  # fmt: skip  # of Kubernetes' pods
# A microservice in one of these exists; in any other it has ended and its id cannot be reused.
ACTIVE: Final = frozenset[Status]({"pending", "running", "error"})
NOT_STOPPED: Final = ACTIVE | frozenset[Status]({"stopping"})  # it may still be running
# An org is a namespace. Two hyphens together would let one org's variables begin as another's: variable_prefix.
ORG: Final = re.compile(r"(?=.{1,63}$)[a-z0-9]+(-[a-z0-9]+)*")
IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{1,62}")
_IMAGE: Final = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._/:@+#-]*")
_OPTION: Final = re.compile(r"(?:[A-Za-z0-9_./@][A-Za-z0-9_.:/,@=+ -]*)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Job(Struct, frozen=True):
    """One microservice to start. `command` is the shell command in the container, the same on every platform.

    `secrets` are names of environment variables; their values are read where the process or object is created, and
    passed by the environment only.
    """

    id: str  # a uuid4: the name of the container, and the registry's key
    network_arch: str
    model_path: str
    image: str
    command: str
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    num_gpus: int = 1
    port: int = 8080  # in the container
    host_port: int = 0  # on this machine; 0: the platform assigns an address
    options: Mapping[str, str] = {}  # platform options: partition, namespace, instance_id …
    folder: bool = False  # whether the model at `model_path` is a directory
    closed: bool = False  # listen on loopback only: it does not authenticate requests itself
    isolation: Isolation = ""
    # URI of its model, fetched to `container_command.fetched_model_path` before the start: it reads no stores
    fetch: str = ""
    fetch_image: str = ""  # of the pod's init container; elsewhere the platform itself fetches


class Entry(Struct, frozen=True):
    """A microservice in the registry; the fields are those of the registry file."""

    platform: str
    network_arch: str
    host_url: str
    started_at: str
    host_port: int | None = None
    platform_job_id: str | None = None
    instance_id: str | None = None
    namespace: str | None = None
    closed: bool = False  # `Job.closed`: others choose it by its job id only


class PlatformStatus(Struct, frozen=True):
    """Status of a microservice as its platform reports it; the model's own status is read from its URL."""

    state: State
    pod_name: str = ""
    pod_status: str = ""  # a phase of Kubernetes, by the state where the platform has no pods
    reason: str = ""  # why it is pending or failed
    tail: tuple[str, ...] = ()  # last lines of its log

    def __post_init__(self) -> None:
        if not self.pod_status:
            force_setattr(self, "pod_status", PHASES[self.state])


class Workspace(Struct, frozen=True):
    """A team's storage. `credentials` are references, never values: `env:NAME` or `file:NAME` for each of

    access_key, secret_key, session_token (S3) and account_key, sas_token (Azure); without any, anonymous access.
    """

    uri: str  # s3://bucket/prefix, az://container/prefix, or a path
    endpoint: str = ""  # of a store other than Amazon's or Azure's
    region: str = "us-east-1"
    account: str = ""  # Azure storage account
    credentials: Mapping[str, str] = {}

    @property
    def base(self) -> str:
        """What the paths and URIs of its files begin with, before a slash."""
        return self.uri.rstrip("/").removeprefix("file://")


class StoredWorkspace(Struct, frozen=True):
    id: str
    org: str
    name: str
    storage: Workspace
    created_at: str
    by_operator: bool = False  # registered with the platform's own token


class Experiment(Struct, frozen=True):
    """An experiment. `workspace` is an id; empty: its jobs name artifacts by full paths."""

    id: str
    org: str
    network_arch: str
    workspace: str
    name: str
    created_at: str
    kind: str = ""  # of a network of one's own: model_kinds


class JobRecord(Struct, frozen=True):
    """One job of an experiment. `message`: why it failed; `entry`: where a microservice runs."""

    id: str
    org: str
    experiment: str
    kind: Kind
    status: Status
    created_at: str
    updated_at: str
    artifact: str = ""  # trained or served model: within the workspace, or a full path or URI
    parent: str = ""
    platform: str = ""
    entry: Entry | None = None
    message: str = ""
    by_operator: bool = False  # whether the operator named its model


def check_job(job: Job) -> Job:
    """Return the job. Raise for values that a program or a shell could misinterpret."""
    for name in (*job.env, *job.secrets):
        if not _VARIABLE.fullmatch(name):
            raise UsageError(f"env: {name!r} is not a variable name, must be letters, digits and _")
    if wrong := [name for name, value in job.env.items() if "\0" in value]:
        raise UsageError(f"env.{wrong[0]} contains a zero byte, which an environment cannot hold")
    if "\0" in job.command:
        raise UsageError("command contains a zero byte, which a command cannot hold")
    check_pattern(_JOB_ID, "job id", job.id, "letters, digits and dashes, as a uuid4 is")
    check_pattern(_IMAGE, "image", job.image, "a name such as nvcr.io/nvidia/tao:6, without blanks")
    for name, value in job.options.items():
        check_pattern(_OPTION, name, value, "letters, digits and any of _ . : / , @ = + -")
    return job


def platform_name(word: str) -> str:
    """Return the platform that the command line or the registry file calls by this word."""
    name = ALIASES.get(word, word)
    if name not in PLATFORMS:
        raise UsageError(f"unknown platform {word}; known: {', '.join(PLATFORMS)}")
    return name


def check_org(org: str) -> str:
    return check_pattern(ORG, "org", org, "lower-case letters, digits and single hyphens, at most 63, as a namespace")


def check_id(field: str, value: str) -> str:
    return check_pattern(IDENTIFIER, field, value, "letters, digits, '.', '_' and '-', at most 128")


def check_pattern(pattern: re.Pattern[str], field: str, value: str, words: str) -> str:
    """Return the value. Raise with its field and what it must be, in words, where it does not fit the pattern."""
    if not pattern.fullmatch(value):
        raise UsageError(f"{field} = {value[:200]!r}, must be {words}")
    return value
