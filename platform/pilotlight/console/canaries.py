"""Canaries in the console: the whole history, and actions (promote, abort ...) requested by a button.

The requested action is saved with the canary, as `platformctl canary` does; the canary's controller executes it.
"""

from contextlib import suppress
from typing import Any, Final

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.areas import Route
from pilotlight.api.keys import BACKEND
from pilotlight.api.services import SERVICE, key_of
from pilotlight.canary import keeping
from pilotlight.canary.model import CanaryCommand
from pilotlight.console.gate import PREFIX
from pilotlight.errors import Conflict
from pilotlight.targets.target import CanaryRecord


class ActionRequest(Struct, frozen=True):
    wish: CanaryCommand


def history_body(canary: CanaryRecord | None) -> dict[str, Any]:
    """Return the history with all fields; the stored one omits defaults."""
    whole: dict[str, Any] = to_builtins(keeping.decode_history(canary))
    return whole


def to_builtins(value: Any) -> Any:
    if isinstance(value, Struct):
        return {name: to_builtins(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [to_builtins(each) for each in value]
    return value


async def request_action(request: web.Request) -> web.Response:
    """Save the requested action, retrying on conflicts with the canary's controller."""
    action, key = json.decode(await request.read(), type=ActionRequest).wish, key_of(request)
    backend = request.app[BACKEND]
    for _ in range(keeping.MAX_ATTEMPTS):
        state, version = keeping.with_command(await backend.canary(key), key, action)
        with suppress(Conflict):
            return web.json_response(history_body(await backend.save_canary(key, state, version)))
    raise keeping.too_many_conflicts(key)


ROUTES: Final = (Route("PUT", f"{PREFIX}{SERVICE}/canary/wish", request_action),)
