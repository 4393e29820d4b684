"""Request and response bodies of the microservice area, as the OpenAPI document has them."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from msgspec import Struct, json

from pilotlight.microservices.jobs.health_responses import ApiResponse
from pilotlight.microservices.registry.records import Experiment, JobRecord, Kind, Status, StoredWorkspace


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

    uri: str
    name: str = ""
    id: str = ""
    endpoint: str = ""
    region: str = "us-east-1"
    account: str = ""
    credentials: Mapping[str, str] = {}


class NewExperiment(Struct, frozen=True, forbid_unknown_fields=True):
    network_arch: str
    workspace: str = ""
    name: str = ""
    id: str = ""


class NewJob(Struct, frozen=True, forbid_unknown_fields=True):
    """A training job that ran elsewhere; `artifact` is its model, within the workspace."""

    kind: Kind = "train"
    status: Status = "done"
    artifact: str = ""
    parent: str = ""
    id: str = ""


class JobChange(Struct, frozen=True, forbid_unknown_fields=True):
    status: Status | None = None
    artifact: str | None = None


class Start(Struct, frozen=True, forbid_unknown_fields=True):
    """`parent_id` is the finished training job whose model is served."""

    parent_id: str
    num_gpus: int | None = None


class Workspaces(Struct, frozen=True):
    workspaces: tuple[StoredWorkspace, ...]


class Experiments(Struct, frozen=True):
    experiments: tuple[Experiment, ...]


class Jobs(Struct, frozen=True):
    jobs: tuple[JobRecord, ...]


class Deleted(Struct, frozen=True):
    id: str
    message: str = "deleted"


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(value), status=status, content_type="application/json")


def to_response(result: ApiResponse) -> web.Response:
    response = json_response(result.body, result.status)
    if result.retry_after_s is not None:
        response.headers["Retry-After"] = str(result.retry_after_s)
    return response
