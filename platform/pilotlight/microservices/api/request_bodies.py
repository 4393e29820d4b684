"""Request and response bodies of the microservice area, as the OpenAPI document has them."""

from collections.abc import Mapping
from typing import Annotated

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from pilotlight.api.json_bodies import json_response
from pilotlight.microservices.jobs.health_responses import ApiResponse
from pilotlight.microservices.registry.records import Experiment, JobRecord, Kind, Status, StoredWorkspace

Name = Annotated[str, Meta(max_length=253)]
Location = Annotated[str, Meta(max_length=4096)]  # a path or a URI


class Login(Struct, frozen=True):
    """`ngc_key` is a key of the org, created by `platformctl api key create`."""

    ngc_key: str
    ngc_org_name: str


class LoggedIn(Struct, frozen=True):
    token: str
    org: str
    expires_at: str


class NewWorkspace(Struct, frozen=True, forbid_unknown_fields=True):
    """`credentials` are references (env:NAME, file:NAME), never values."""

    uri: Location
    name: Name = ""
    id: Name = ""
    endpoint: Location = ""
    region: Name = "us-east-1"
    account: Name = ""
    credentials: Mapping[Name, Location] = {}


class NewExperiment(Struct, frozen=True, forbid_unknown_fields=True):
    """`kind` is that of a network of your own, such as classification."""

    network_arch: Name
    workspace: Name = ""
    name: Name = ""
    id: Name = ""
    kind: Name = ""


class NewJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A training job that ran elsewhere; `artifact` is its model, within the workspace."""

    kind: Kind = "train"
    status: Status = "done"
    artifact: Location = ""
    parent: Name = ""
    id: Name = ""


class JobChange(Struct, frozen=True, forbid_unknown_fields=True):
    status: Status | None = None
    artifact: Location | None = None


class Start(Struct, frozen=True, forbid_unknown_fields=True):
    """`parent_id` is the finished training job whose model is served."""

    parent_id: Name
    num_gpus: int | None = None


class Page(Struct, frozen=True, kw_only=True):
    """At most 100 records. `next`: the `after` of the next page, left out of the last one."""

    next: str | UnsetType = UNSET


class Workspaces(Page, frozen=True):
    workspaces: tuple[StoredWorkspace, ...]


class Experiments(Page, frozen=True):
    experiments: tuple[Experiment, ...]


class Jobs(Page, frozen=True):
    jobs: tuple[JobRecord, ...]


class Logs(Struct, frozen=True):
    """The end of what a microservice wrote, without the values of secrets."""

    job_id: str
    lines: tuple[str, ...]


class Deleted(Struct, frozen=True):
    id: str
    message: str = "deleted"


def to_response(result: ApiResponse) -> web.Response:
    response = json_response(result.body, result.status)
    if result.retry_after_s is not None:
        response.headers["Retry-After"] = str(result.retry_after_s)
    return response
