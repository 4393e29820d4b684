"""Routes of services, canaries and metric queries: decode, call a verb through the backend, encode.

Bodies are the Structs of `targets.target`. Canaries are written with optimistic locking by version.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight import __version__
from pilotlight.api.json_bodies import json_response
from pilotlight.api.route_types import Route
from pilotlight.api.target_adapters import BACKEND, ENGINE, STOP
from pilotlight.errors import NotFound, UsageError
from pilotlight.targets import table
from pilotlight.targets.target import CanaryRecord, Key, Release, SampleBody, ServiceStatus, ServiceVerbs, Share

BOUNDS: Final = ("minReplicas", "maxReplicas")
DRAIN_S: Final = 30.0
SERVICE: Final = "/api/v1/namespaces/{namespace}/services/{name}"


class CanaryUpdate(Struct, frozen=True):
    """Body of an update; `version` is the version that was read, "" for a new canary."""

    state: str
    version: str = ""


async def healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def version(request: web.Request) -> web.Response:
    return json_response({"version": __version__, "pid": os.getpid()})


async def list_services(request: web.Request) -> web.Response:
    namespace = request.query.get("namespace") or None
    return await _call(request, lambda target: target.list(namespace))


async def status(request: web.Request) -> web.Response:
    return await _call(request, lambda target: target.status(key_of(request)))


async def apply(request: web.Request) -> web.Response:
    release = json.decode(await request.read(), type=Release)
    if (release.namespace, release.name) != key_of(request):
        raise UsageError(f"the body is of {release.namespace}/{release.name}, the path of {'/'.join(key_of(request))}")
    reset, dry_run = flag_parameter(request, "reset"), flag_parameter(request, "dry_run")
    return await _call(request, lambda target: target.apply(release, reset=reset, dry_run=dry_run))


async def set_secret(request: web.Request) -> web.Response:
    values = json.decode(await request.read(), type=dict[str, str])
    request.app[ENGINE].set_secret(key_of(request), values)
    return json_response({})


async def check_target(request: web.Request) -> web.Response:
    """Return the findings of a target's checks, in the environment of this process, which runs its replicas."""
    options, name = json.decode(await request.read(), type=dict[str, str]), request.match_info["name"]
    if (module := table.module(name)) is None:
        raise NotFound(f"{name} has no checks here")
    return json_response(await asyncio.to_thread(lambda: list(module.findings(os.environ, options))))


async def delete(request: web.Request) -> web.Response:
    await request.app[BACKEND].delete(key_of(request))
    return json_response({})


async def live(request: web.Request) -> web.Response:
    return await _call(request, lambda target: [each.document for each in target.live(key_of(request))])


async def releases(request: web.Request) -> web.Response:
    return await _call(request, lambda target: target.releases(key_of(request)))


async def scale(request: web.Request) -> web.Response:
    """Override the replica bounds; `null` removes the override."""
    bounds = json.decode(await request.read(), type=dict[str, int] | None)
    unknown = sorted(set(bounds or ()) - set(BOUNDS))
    if unknown or bounds == {}:
        raise UsageError(f"bounds are {', '.join(BOUNDS)}, not {', '.join(unknown) or 'nothing'}")
    return await _call(request, lambda target: target.scale(key_of(request), bounds))


async def traffic(request: web.Request) -> web.Response:
    shares = json.decode(await request.read(), type=tuple[Share, ...] | None)
    return await _call(request, lambda target: target.traffic(key_of(request), shares))


async def list_canaries(request: web.Request) -> web.Response:
    namespace = request.query.get("namespace") or None
    return await _call(request, lambda target: target.canaries(namespace))


async def get_canary(request: web.Request) -> web.Response:
    """Return a list of the canary, or an empty one."""
    canary = await request.app[BACKEND].call(lambda target: target.canary(key_of(request)))
    return json_response([canary] if canary is not None else [])


async def save_canary(request: web.Request) -> web.Response:
    update = json.decode(await request.read(), type=CanaryUpdate)
    return await _call(request, lambda target: target.save_canary(key_of(request), update.state, update.version))


async def query(request: web.Request) -> web.Response:
    body = json.decode(await request.read(), type=dict[str, str])
    samples = await request.app[BACKEND].query(body.get("query", ""))
    return json_response([SampleBody(dict(each.labels), repr(each.value), each.at) for each in samples])


async def shutdown(request: web.Request) -> web.Response:
    body = json.decode(await request.read() or b"{}", type=dict[str, float])
    request.app[STOP](body.get("drain_s", DRAIN_S))
    return json_response({"pid": os.getpid()})


def key_of(request: web.Request) -> Key:
    return request.match_info["namespace"], request.match_info["name"]


def flag_parameter(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("1", "true", "yes")


async def _call(request: web.Request, verb: Callable[[ServiceVerbs], Any]) -> web.Response:
    return json_response(await request.app[BACKEND].call(verb))


SHUTDOWN: Final = Route(
    "POST", "/api/v1/shutdown", shutdown, "Shut down the platform and everything it runs.", dict[str, float],
    {200: dict[str, Any]},
)  # fmt: skip
SECRET: Final = Route(
    "PUT", f"{SERVICE}/secret", set_secret, "Set the values of the service's Secret, kept in memory.", dict[str, str],
    {200: dict[str, Any]},
)  # fmt: skip
CHECKS: Final = Route(
    "POST", "/api/v1/targets/{name}/checks", check_target, "Check the requirements of docker or slurm.", dict[str, str],
    {200: list[dict[str, str]]},
)  # fmt: skip
ROUTES: Final = (
    Route("GET", "/api/v1/version", version, "Version and process id of the API.", responses={200: dict[str, Any]}),
    Route(
        "GET", "/api/v1/services", list_services, "Services with their status.",
        responses={200: tuple[ServiceStatus, ...]}, query=("namespace",),
    ),
    Route("GET", SERVICE, status, "Status of one service.", responses={200: ServiceStatus}),
    Route("PUT", SERVICE, apply, "Deploy a release.", Release, {200: ServiceStatus}, ("reset", "dry_run")),
    Route("DELETE", SERVICE, delete, "Delete a service.", responses={200: dict[str, Any]}),
    Route("GET", f"{SERVICE}/live", live, "Its live objects.", responses={200: list[dict[str, Any]]}),
    Route("GET", f"{SERVICE}/releases", releases, "Its releases, newest first.", responses={200: tuple[Release, ...]}),
    Route("PUT", f"{SERVICE}/scale", scale, "Override replica bounds.", dict[str, int] | None, {200: ServiceStatus}),
    Route(
        "PUT", f"{SERVICE}/traffic", traffic, "Override the traffic split.", tuple[Share, ...] | None,
        {200: ServiceStatus},
    ),
)  # fmt: skip
CANARY_ROUTES: Final = (
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
