"""Services over HTTP: decode, ask what stands behind, encode. Bodies are the values of `targets.target`."""

import os
from typing import Any, Final

from aiohttp import web
from msgspec import json

from pilotlight import __version__
from pilotlight.api.areas import Route
from pilotlight.api.keys import BACKING, STOP
from pilotlight.errors import UsageError
from pilotlight.targets.target import Key, Release, ServiceStatus, Share

BOUNDS: Final = ("minReplicas", "maxReplicas")
DRAIN_S: Final = 30.0
SERVICE: Final = "/api/v1/namespaces/{namespace}/services/{name}"


async def healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def version(request: web.Request) -> web.Response:
    return _json({"version": __version__, "pid": os.getpid()})


async def listed(request: web.Request) -> web.Response:
    return _json(await request.app[BACKING].statuses(request.query.get("namespace") or None))


async def status(request: web.Request) -> web.Response:
    return _json(await request.app[BACKING].status(key_of(request)))


async def apply(request: web.Request) -> web.Response:
    release = json.decode(await request.read(), type=Release)
    if (release.namespace, release.name) != key_of(request):
        raise UsageError(f"the body is of {release.namespace}/{release.name}, the path of {'/'.join(key_of(request))}")
    reset, dry_run = flag(request, "reset"), flag(request, "dry_run")
    return _json(await request.app[BACKING].apply(release, reset=reset, dry_run=dry_run))


async def delete(request: web.Request) -> web.Response:
    await request.app[BACKING].delete(key_of(request))
    return _json({})


async def live(request: web.Request) -> web.Response:
    return _json(await request.app[BACKING].live(key_of(request)))


async def releases(request: web.Request) -> web.Response:
    return _json(await request.app[BACKING].releases(key_of(request)))


async def scale(request: web.Request) -> web.Response:
    """`null` gives the document its word back."""
    bounds = json.decode(await request.read(), type=dict[str, int] | None)
    unknown = sorted(set(bounds or ()) - set(BOUNDS))
    if unknown or bounds == {}:
        raise UsageError(f"bounds are {', '.join(BOUNDS)}, not {', '.join(unknown) or 'nothing'}")
    return _json(await request.app[BACKING].scale(key_of(request), bounds))


async def traffic(request: web.Request) -> web.Response:
    shares = json.decode(await request.read(), type=tuple[Share, ...] | None)
    return _json(await request.app[BACKING].traffic(key_of(request), shares))


async def shutdown(request: web.Request) -> web.Response:
    wanted = json.decode(await request.read() or b"{}", type=dict[str, float])
    request.app[STOP](wanted.get("drain_s", DRAIN_S))
    return _json({"pid": os.getpid()})


def key_of(request: web.Request) -> Key:
    return request.match_info["namespace"], request.match_info["name"]


def flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("1", "true", "yes")


def _json(value: Any) -> web.Response:
    return web.Response(body=json.encode(value), content_type="application/json")


SHUTDOWN: Final = Route(
    "POST", "/api/v1/shutdown", shutdown, "End the platform with all that it runs.", dict[str, float],
    {200: dict[str, Any]},
)  # fmt: skip
ROUTES: Final = (
    Route("GET", "/api/v1/version", version, "Version and process of who answers.", answers={200: dict[str, Any]}),
    Route(
        "GET", "/api/v1/services", listed, "Services with their status.", answers={200: tuple[ServiceStatus, ...]},
        query=("namespace",),
    ),
    Route("GET", SERVICE, status, "Status of one service.", answers={200: ServiceStatus}),
    Route("PUT", SERVICE, apply, "Deploy a release.", Release, {200: ServiceStatus}, ("reset", "dry_run")),
    Route("DELETE", SERVICE, delete, "Delete a service.", answers={200: dict[str, Any]}),
    Route("GET", f"{SERVICE}/live", live, "Its objects as they are.", answers={200: list[dict[str, Any]]}),
    Route("GET", f"{SERVICE}/releases", releases, "Its releases, newest first.", answers={200: tuple[Release, ...]}),
    Route("PUT", f"{SERVICE}/scale", scale, "Bounds of replicas by hand.", dict[str, int] | None, {200: ServiceStatus}),
    Route(
        "PUT", f"{SERVICE}/traffic", traffic, "Shares of traffic by hand.", tuple[Share, ...] | None,
        {200: ServiceStatus},
    ),
)  # fmt: skip
