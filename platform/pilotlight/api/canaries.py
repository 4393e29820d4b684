"""Canaries and queries over HTTP: what is kept of them, taken only from whoever has seen its last version."""

from typing import Any, Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.areas import Route
from pilotlight.api.keys import BACKING
from pilotlight.api.services import SERVICE, key_of
from pilotlight.targets.target import KeptCanary


class Kept(Struct, frozen=True):
    """The body of a change; `version` is the one that was seen, "" for none."""

    state: str
    version: str = ""


class Told(Struct, frozen=True):
    """A sample on the wire. Its value is a text: JSON has no word for NaN."""

    labels: dict[str, str]
    value: str
    at: float


async def listed(request: web.Request) -> web.Response:
    return _json(await request.app[BACKING].canaries(request.query.get("namespace") or None))


async def one(request: web.Request) -> web.Response:
    """A list of one, or of none."""
    found = await request.app[BACKING].canary(key_of(request))
    return _json([found] if found is not None else [])


async def keep(request: web.Request) -> web.Response:
    wanted = json.decode(await request.read(), type=Kept)
    return _json(await request.app[BACKING].keep_canary(key_of(request), wanted.state, wanted.version))


async def query(request: web.Request) -> web.Response:
    asked = json.decode(await request.read(), type=dict[str, str])
    found = await request.app[BACKING].query(asked.get("query", ""))
    return _json([Told(dict(each.labels), repr(each.value), each.at) for each in found])


def _json(value: Any) -> web.Response:
    return web.Response(body=json.encode(value), content_type="application/json")


ROUTES: Final = (
    Route(
        "GET", "/api/v1/canaries", listed, "Canaries of services.", answers={200: tuple[KeptCanary, ...]},
        query=("namespace",),
    ),
    Route("GET", f"{SERVICE}/canary", one, "What is kept of its canaries.", answers={200: tuple[KeptCanary, ...]}),
    Route("PUT", f"{SERVICE}/canary", keep, "Keep the state of its canary.", Kept, {200: KeptCanary}),
    Route(
        "POST", "/api/v1/query", query, "What metrics of services say.", dict[str, str], {200: tuple[Told, ...]},
    ),
)  # fmt: skip
