"""Canaries for the console's page: the ledger in full, and what a button asks for.

A wish is kept beside the canary, as `platformctl canary` keeps it; whoever runs the canary grants it.
"""

from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.areas import Route
from pilotlight.api.keys import BACKING
from pilotlight.api.services import SERVICE, key_of
from pilotlight.canary import keeping
from pilotlight.canary.model import Wish
from pilotlight.console.gate import PREFIX
from pilotlight.errors import Conflict
from pilotlight.targets.target import KeptCanary


class Wished(Struct, frozen=True):
    wish: Wish


def told(kept: KeptCanary | None) -> dict[str, Any]:
    """With every field: what is kept leaves out what is usual."""
    whole: dict[str, Any] = full(keeping.read(kept))
    return whole


def full(value: Any) -> Any:
    if isinstance(value, Struct):
        return {name: full(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [full(each) for each in value]
    return value


async def wish(request: web.Request) -> web.Response:
    """Kept over what the runner writes meanwhile: it looks again and asks anew."""
    wanted, key = json.decode(await request.read(), type=Wished).wish, key_of(request)
    backing = request.app[BACKING]
    for _ in range(keeping.TRIES):
        state, version = keeping.wished(await backing.canary(key), key, wanted)
        with suppress(Conflict):
            return web.json_response(told(await backing.keep_canary(key, state, version)))
    raise keeping.contested(key)


ROUTES: Final = (Route("PUT", f"{PREFIX}{SERVICE}/canary/wish", wish),)
