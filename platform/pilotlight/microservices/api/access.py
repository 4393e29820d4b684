"""Who asks: the login that gives a token for an org's key, and the gate before everything of an org."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

from aiohttp import web
from msgspec import json

from pilotlight.api.gates import shows_admin, small_body
from pilotlight.errors import NotFound, Throttled, Unauthorized
from pilotlight.gateway.rate import Buckets
from pilotlight.gateway.table import Rate
from pilotlight.microservices import accounts, tokens
from pilotlight.microservices.api.bodies import LoggedIn, Login
from pilotlight.microservices.api.desk import DESK
from pilotlight.microservices.api.written import reply
from pilotlight.microservices.records import ORG

# Logins that fail. With a key that there is, of that key alone: behind a proxy everybody has one address, and whoever
# does not know a key's id must not be able to lock its owner out.
LOGINS: Final = Rate(20, 60.0, burst=10)  # of one key, or of one address for one org
OF_ADDRESS: Final = Rate(120, 60.0, burst=60)  # for all orgs, whose names anybody can make up
Payers = tuple[tuple[tuple[str, ...], Rate], ...]  # each has its own account
SCHEME: Final = "bearer"


async def login(request: web.Request) -> web.Response:
    desk, asked = request.app[DESK], json.decode(await small_body(request), type=Login)
    kept = accounts.sought(desk.directory, asked.ngc_org_name, asked.ngc_key, time.time())
    paying = payers(kept.id, request.remote or "", asked.ngc_org_name)
    if wait_s := pause(desk.logins, paying, time.monotonic()):
        raise Throttled("too many logins; wait before the next", retry_after_s=int(wait_s) + 1)
    async with desk.hashing:  # slow, so it is done aside and a few at a time
        fits = await asyncio.to_thread(accounts.fits, kept, asked.ngc_key)
    if not fits:
        raise Unauthorized("ngc_key or ngc_org_name is wrong", "platformctl api key create ORG makes a key")
    for payer, _ in paying:
        desk.logins.give_back(payer)
    token, expires_at = tokens.issue(desk.directory, asked.ngc_org_name, kept.id, time.time())
    told = datetime.fromtimestamp(expires_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return reply(LoggedIn(token, asked.ngc_org_name, told))


def payers(key: str, address: str, org: str) -> Payers:
    """On whose account a login goes until it has succeeded. `key`: the id of one of this org; empty: there is none."""
    if key:
        return ((("key", key), LOGINS),)
    return ((("address", address), OF_ADDRESS), (("address", address, org), LOGINS))


def pause(logins: Buckets, paying: Payers, now: float) -> float:
    """Seconds that must pass before this login; 0: none."""
    return next((wait for payer, rate in paying if (wait := logins.take(payer, rate, now))), 0.0)


async def member(request: web.Request) -> None:
    """The gate: a token of this very org, or the platform's own. Of another org it is not even told that it exists."""
    org = request.match_info.get("org", "")
    if not shows_admin(request) and await _org_of(request) != org:
        raise NotFound(f"no org {org} for this token")
    if not ORG.fullmatch(org):
        raise NotFound(f"{org} is no name of an org")


async def _org_of(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    found = None
    if scheme.lower() == SCHEME and token:
        desk = request.app[DESK]
        found = tokens.org_of(desk.directory, token, time.time())
        if found is None and desk.oidc is not None and token.count(".") == 2:
            found = await desk.oidc.org_of(token, time.monotonic())
    if found is None:
        raise Unauthorized("the bearer token is missing, wrong or has ended", "POST /api/v1/login gives one")
    return found
