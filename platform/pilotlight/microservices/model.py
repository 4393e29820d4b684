"""What a microservice is to those who start it, keep it in a registry and look after it. Values only."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

State = Literal["pending", "running", "failed", "stopped", "gone", "unknown"]  # unknown: its platform does not answer


class Job(Struct, frozen=True):
    """One microservice to be started. `command` is the inner shell command, the same on every platform.

    `secrets` are names of environment variables: their values are read where the process or object is made, and
    travel by the environment alone.
    """

    id: str  # a uuid4: the name of the container, and the registry's key
    network_arch: str
    model_path: str
    image: str
    command: str
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    num_gpus: int = 1
    port: int = 8080  # where it listens in its container
    host_port: int = 0  # where it is reached on this machine; 0: the platform has an address of its own for it
    options: Mapping[str, str] = {}  # of the platform: partition, namespace, instance_id …
    folder: bool = False  # whether the model at `model_path` is a directory
    closed: bool = False  # only who started it shall reach it: it asks nobody for a token itself


class Entry(Struct, frozen=True):
    """A microservice as the registry keeps it; the fields are those of the registry file."""

    platform: str
    network_arch: str
    host_url: str
    started_at: str
    host_port: int | None = None
    platform_job_id: str | None = None
    instance_id: str | None = None
    namespace: str | None = None


class Seen(Struct, frozen=True):
    """What the platform says of it; what the model says of itself is asked of its own address."""

    state: State
    pod_name: str = ""
    pod_status: str = ""  # Pending, Running, Failed …, in the platform's own word
    reason: str = ""  # why it is pending or failed, in one sentence
    tail: tuple[str, ...] = ()  # last lines of its log


class Workspace(Struct, frozen=True):
    """A team's storage. `credentials` are references, never values: `env:NAME` or `file:NAME` for each of

    access_key, secret_key, session_token (S3) and account_key, sas_token (Azure); none at all: what is public.
    """

    uri: str  # s3://bucket/prefix, az://container/prefix, or a path
    endpoint: str = ""  # of a store that is not Amazon's or Azure's own
    region: str = "us-east-1"
    account: str = ""  # of Azure
    credentials: Mapping[str, str] = {}
