"""Request and response bodies of the microservice area, as the OpenAPI document has them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType, json, structs

from pilotlight.api.middlewares import read_small_body
from pilotlight.errors import UsageError
from pilotlight.microservices.jobs.health_responses import ApiResponse
from pilotlight.microservices.registry.records import Experiment, JobRecord, Kind, Status, StoredWorkspace
from pilotlight.wire.http_client import check_json

T = TypeVar("T")
MAX_BYTES: Final = 1024 * 1024  # of a body, except of those that go to a model
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


async def read_body(request: web.Request, kind: type[T]) -> T:
    """Return the decoded body. Raise 413 above MAX_BYTES, and msgspec's errors for one that is not of this kind."""
    return decode_request(await read_small_body(request, MAX_BYTES), kind)


def decode_request(text: bytes, kind: type[T]) -> T:
    """Decode a body on the event loop. Raise UsageError if it is empty or would hold it up, and msgspec's errors."""
    if not text:
        fields = structs.fields(kind) if hasattr(kind, "__struct_fields__") else ()  # type: ignore[arg-type]
        needs = ", ".join(each.encode_name for each in fields if each.required)
        raise UsageError("the body is empty, must be a JSON object" + (f" with {needs}" if needs else ""))
    try:
        check_json(text)
    except ValueError as error:
        raise UsageError(f"the body is too large: {error}", "send tensors in parts, or media by reference") from None
    return json.decode(text, type=kind)


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(value), status=status, content_type="application/json")


def to_response(result: ApiResponse) -> web.Response:
    response = json_response(result.body, result.status)
    if result.retry_after_s is not None:
        response.headers["Retry-After"] = str(result.retry_after_s)
    return response
