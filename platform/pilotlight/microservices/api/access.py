"""Login, which exchanges an org's key for a token, and the authorizer of an org's routes."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

from aiohttp import web
from msgspec import json

from pilotlight.api.gates import is_admin, read_small_body
from pilotlight.errors import NotFound, Throttled, Unauthorized
from pilotlight.gateway.rate import RateLimiter
from pilotlight.gateway.table import Rate
from pilotlight.microservices import accounts, tokens
from pilotlight.microservices.api.bodies import LoggedIn, Login
from pilotlight.microservices.api.desk import CONTEXT
from pilotlight.microservices.api.written import json_response
from pilotlight.microservices.records import ORG

# Rate limits of failed logins. With a known key id they count for that key only: behind a proxy all clients have one
# address, and a client that does not know a key's id must not lock its owner out.
LOGIN_RATE: Final = Rate(20, 60.0, burst=10)  # per key, or per address and org
ADDRESS_RATE: Final = Rate(120, 60.0, burst=60)  # for all orgs, since names can be invented
RateLimitKeys = tuple[tuple[tuple[str, ...], Rate], ...]
SCHEME: Final = "bearer"


async def login(request: web.Request) -> web.Response:
    context, body = request.app[CONTEXT], json.decode(await read_small_body(request), type=Login)
    stored = accounts.find_key_hash(context.directory, body.ngc_org_name, body.ngc_key, time.time())
    keys = rate_limit_keys(stored.id, request.remote or "", body.ngc_org_name)
    if wait_s := login_delay(context.logins, keys, time.monotonic()):
        raise Throttled("too many logins; wait before the next", retry_after_s=int(wait_s) + 1)
    async with context.hash_slots:  # slow, so in a thread and a few at a time
        fits = await asyncio.to_thread(accounts.verify, stored, body.ngc_key)
    if not fits:
        raise Unauthorized("ngc_key or ngc_org_name is wrong", "platformctl api key create ORG makes a key")
    for key, _ in keys:
        context.logins.refund(key)
    token, expires_at = tokens.issue(context.directory, body.ngc_org_name, stored.id, time.time())
    expires = datetime.fromtimestamp(expires_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return json_response(LoggedIn(token, body.ngc_org_name, expires))


def rate_limit_keys(key: str, address: str, org: str) -> RateLimitKeys:
    """Return the limits that a login counts for until it succeeds. `key`: a key id of this org, or empty."""
    if key:
        return ((("key", key), LOGIN_RATE),)
    return ((("address", address), ADDRESS_RATE), (("address", address, org), LOGIN_RATE))


def login_delay(logins: RateLimiter, keys: RateLimitKeys, now: float) -> float:
    """Return the seconds to wait before this login, 0 if none."""
    return next((wait for key, rate in keys if (wait := logins.acquire(key, rate, now))), 0.0)


async def require_member(request: web.Request) -> None:
    """Authorizer: a token of this org, or the platform's own. Raise NotFound, to not reveal that another org exists."""
    org = request.match_info.get("org", "")
    if not is_admin(request) and await _org_of(request) != org:
        raise NotFound(f"no org {org} for this token")
    if not ORG.fullmatch(org):
        raise NotFound(f"{org} is no name of an org")


async def _org_of(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    org = None
    if scheme.lower() == SCHEME and token:
        context = request.app[CONTEXT]
        org = tokens.org_of(context.directory, token, time.time())
        if org is None and context.oidc is not None and token.count(".") == 2:
            org = await context.oidc.org_of(token, time.monotonic())
    if org is None:
        raise Unauthorized("the bearer token is missing, wrong or has ended", "POST /api/v1/login gives one")
    return org
