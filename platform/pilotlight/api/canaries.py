"""Routes of canaries, written with optimistic locking by version, and of metric queries."""

from typing import Any, Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.areas import Route
from pilotlight.api.keys import BACKEND
from pilotlight.api.services import SERVICE, key_of
from pilotlight.targets.target import CanaryRecord


class CanaryUpdate(Struct, frozen=True):
    """Body of an update; `version` is the version that was read, "" for a new canary."""

    state: str
    version: str = ""


class SampleBody(Struct, frozen=True):
    """A sample as JSON. Its value is a string, since JSON has no NaN."""

    labels: dict[str, str]
    value: str
    at: float


async def list_canaries(request: web.Request) -> web.Response:
    return _json(await request.app[BACKEND].canaries(request.query.get("namespace") or None))


async def get_canary(request: web.Request) -> web.Response:
    """Return a list of the canary, or an empty one."""
    canary = await request.app[BACKEND].canary(key_of(request))
    return _json([canary] if canary is not None else [])


async def save_canary(request: web.Request) -> web.Response:
    update = json.decode(await request.read(), type=CanaryUpdate)
    return _json(await request.app[BACKEND].save_canary(key_of(request), update.state, update.version))


async def query(request: web.Request) -> web.Response:
    body = json.decode(await request.read(), type=dict[str, str])
    samples = await request.app[BACKEND].query(body.get("query", ""))
    return _json([SampleBody(dict(each.labels), repr(each.value), each.at) for each in samples])


def _json(value: Any) -> web.Response:
    return web.Response(body=json.encode(value), content_type="application/json")


ROUTES: Final = (
    Route(
        "GET", "/api/v1/canaries", list_canaries, "Canaries of services.", responses={200: tuple[CanaryRecord, ...]},
        query=("namespace",),
    ),
    Route("GET", f"{SERVICE}/canary", get_canary, "Record of its canary.", responses={200: tuple[CanaryRecord, ...]}),
    Route("PUT", f"{SERVICE}/canary", save_canary, "Save the state of its canary.", CanaryUpdate, {200: CanaryRecord}),
    Route(
        "POST", "/api/v1/query", query, "Query metrics of services.", dict[str, str], {200: tuple[SampleBody, ...]},
    ),
)  # fmt: skip
