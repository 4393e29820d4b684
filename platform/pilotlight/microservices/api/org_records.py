"""Handlers of an org's records: login, which exchanges a key for a token, workspaces, experiments and jobs.

`require_member` is the authorizer of all routes of an org.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from aiohttp import web
from msgspec import UNSET

from pilotlight.api.json_bodies import decode_request, json_response, read_body
from pilotlight.api.middlewares import is_admin, read_small_body
from pilotlight.api.route_types import Handler
from pilotlight.errors import NotFound, Throttled, Unauthorized
from pilotlight.k8s.timestamps import format_utc
from pilotlight.microservices.api import request_bodies
from pilotlight.microservices.api.api_context import CONTEXT, job_path
from pilotlight.microservices.api.request_bodies import LoggedIn, Login, Page
from pilotlight.microservices.jobs import org_resources
from pilotlight.microservices.jobs.model_isolation import org_isolation
from pilotlight.microservices.jobs.org_resources import Registrar
from pilotlight.microservices.registry import api_keys
from pilotlight.microservices.registry.database import PAGE, OrgStore
from pilotlight.microservices.registry.records import ORG, Experiment, JobRecord, StoredWorkspace, Workspace
from pilotlight.wire.service_access import Rate
from pilotlight.wire.token_bucket import TokenBuckets

# Rate limits of failed logins. With a known key id they count for that key only: behind a proxy all clients have one
# address, and a client that does not know a key's id must not lock its owner out.
LOGIN_RATE: Final = Rate(20, 60.0, burst=10)  # per key, or per address and org
ADDRESS_RATE: Final = Rate(120, 60.0, burst=60)  # for all orgs, since names can be invented
Record = StoredWorkspace | Experiment | JobRecord
RateLimitKeys = tuple[tuple[tuple[str, ...], Rate], ...]


async def login(request: web.Request) -> web.Response:
    context, body = request.app[CONTEXT], decode_request(await read_small_body(request), Login)
    stored = api_keys.find_key_hash(context.store, body.ngc_org_name, body.ngc_key, time.time())
    keys = rate_limit_keys(stored.id, request.remote or "", body.ngc_org_name)
    if wait_s := login_delay(context.logins, keys, time.monotonic()):
        raise Throttled("too many logins; wait before the next", retry_after_s=int(wait_s) + 1)
    async with context.hash_slots:  # slow, so in a thread and a few at a time
        fits = await asyncio.to_thread(api_keys.verify, stored, body.ngc_key)
    if not fits:
        raise Unauthorized("ngc_key or ngc_org_name is wrong", "create a key: platformctl api key create ORG")
    for key, _ in keys:
        context.logins.refund(key)
    token, expires_at = api_keys.issue(context.store, body.ngc_org_name, stored.id, time.time())
    expires = format_utc(datetime.fromtimestamp(expires_at, UTC), "seconds")
    return json_response(LoggedIn(token, body.ngc_org_name, expires))


def rate_limit_keys(key: str, address: str, org: str) -> RateLimitKeys:
    """Return the limits that a login counts for until it succeeds. `key`: a key id of this org, or empty."""
    if key:
        return ((("key", key), LOGIN_RATE),)
    return ((("address", address), ADDRESS_RATE), (("address", address, org), LOGIN_RATE))


def login_delay(logins: TokenBuckets, keys: RateLimitKeys, now: float) -> float:
    """Return the seconds to wait before this login, 0 if none."""
    waits = (logins.acquire(key, rate.capacity, rate.per_second, now) for key, rate in keys)
    return next(filter(None, waits), 0.0)


async def require_member(request: web.Request) -> None:
    """Authorizer: a token of this org, or the platform's own. Raise NotFound, to not reveal that another org exists."""
    org = request.match_info.get("org") or request.path.split("/")[4]  # of a path that is no route
    if not is_admin(request) and await _org_of(request) != org:
        raise NotFound(f"no org {org} for this token")
    if not ORG.fullmatch(org):
        raise NotFound(f"{org} is not an org name")
    request.app[CONTEXT].refresh()


async def _org_of(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    org = None
    if scheme.lower() == "bearer" and token:
        context = request.app[CONTEXT]
        org = api_keys.org_of(context.store, token, time.time())
        if org is None and context.oidc is not None and token.count(".") == 2:
            org = await context.oidc.org_of(token, time.monotonic())
    if org is None:
        raise Unauthorized("the bearer token is missing, wrong or expired", "get one with POST /api/v1/login")
    return org


async def add_workspace(request: web.Request) -> web.Response:
    body = await read_body(request, request_bodies.NewWorkspace)
    storage = Workspace(body.uri, body.endpoint, body.region, body.account, body.credentials)
    return json_response(_registrar(request).workspace(storage, body.name, body.id), 201)


async def add_experiment(request: web.Request) -> web.Response:
    body = await read_body(request, request_bodies.NewExperiment)
    kind = org_resources.own_kind(body.network_arch, body.kind, request.app[CONTEXT].environ)
    record = _registrar(request).experiment(body.network_arch, body.workspace, body.name, body.id, kind)
    return json_response(record, 201)


async def add_job(request: web.Request) -> web.Response:
    body = await read_body(request, request_bodies.NewJob)
    registrar, experiment = _registrar(request), request.match_info["experiment"]
    return json_response(registrar.job(experiment, body.kind, body.status, body.artifact, body.parent, body.id), 201)


async def update_job(request: web.Request) -> web.Response:
    body = await read_body(request, request_bodies.JobChange)
    return json_response(_registrar(request).change(*job_path(request)[1:], body.status, body.artifact))


def lister(read: Callable[..., Sequence[Record]], page: Callable[..., Page]) -> Handler:
    """Return the handler of a list. `read` is called with the store, the parts of the path and `after`."""

    async def handler(request: web.Request) -> web.Response:
        arguments = (*request.match_info.values(), request.query.get("after", ""))
        records = read(request.app[CONTEXT].store, *arguments)
        return json_response(page(tuple(records), next=records[-1].id if len(records) == PAGE else UNSET))

    return handler


def getter(read: Callable[..., Record]) -> Handler:
    """Return the handler of one record. `read` is called with the store and the parts of the path."""

    async def handler(request: web.Request) -> web.Response:
        return json_response(read(request.app[CONTEXT].store, *request.match_info.values()))

    return handler


def deleter(delete: Callable[..., None]) -> Handler:
    """Return the handler that deletes a record, whose id is the last part of the path."""

    async def handler(request: web.Request) -> web.Response:
        parts = tuple(request.match_info.values())
        delete(request.app[CONTEXT].store, *parts)
        return json_response(request_bodies.Deleted(parts[-1]))

    return handler


def delete_job(store: OrgStore, org: str, experiment: str, id: str) -> None:  # noqa: A002 - its name everywhere
    store.delete_job(org, org_resources.get_job(store, org, experiment, id).id)


def _registrar(request: web.Request) -> Registrar:
    context, org, trusted = request.app[CONTEXT], request.match_info["org"], is_admin(request)
    isolation = org_isolation(org, context.settings.platform, context.settings.options, context.environ)
    most = 0 if trusted else context.max_records
    return Registrar(context.store, org, context.limits, trusted, isolation, most)
