"""Buttons of the console that change a service: canary actions (promote, abort ...) and rollback.

A canary action is saved with the canary, as `platformctl canary` does; the canary's controller executes it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from msgspec import Struct, field, json

from pilotlight.api.route_types import Route
from pilotlight.api.services import SERVICE, key_of
from pilotlight.api.target_adapters import BACKEND, ENGINE, Backend
from pilotlight.canaries import stored_history
from pilotlight.canaries.canary_state import CanaryCommand
from pilotlight.console.sessions import PREFIX
from pilotlight.errors import Conflict
from pilotlight.targets.target import CanaryRecord, Key

if TYPE_CHECKING:
    from pilotlight.targets.target import Target


class ActionRequest(Struct, frozen=True):
    command: CanaryCommand = field(name="wish")


class RollbackRequest(Struct, frozen=True):
    generation: int


def history_body(canary: CanaryRecord | None) -> dict[str, Any]:
    """Return the history with all fields; the stored one omits defaults."""
    body: dict[str, Any] = _all_fields(stored_history.decode_history(canary))
    return body


def _all_fields(value: Any) -> Any:
    if isinstance(value, Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {encoded: _all_fields(getattr(value, name)) for name, encoded in names}
    return [_all_fields(each) for each in value] if isinstance(value, list | tuple) else value


async def request_action(request: web.Request) -> web.Response:
    """Save the requested action, retrying on conflicts with the canary's controller."""
    action, key = json.decode(await request.read(), type=ActionRequest).command, key_of(request)
    backend = request.app[BACKEND]
    for _ in range(stored_history.MAX_ATTEMPTS):
        state, version = stored_history.with_command(await backend.call(lambda target: target.canary(key)), key, action)
        with suppress(Conflict):
            record = await backend.call(methodcaller("save_canary", key, state, version))
            return web.json_response(history_body(record))
    raise stored_history.too_many_conflicts(key)


class BlockingTarget:
    """Verbs of a target called from a thread, over a backend of another thread's event loop."""

    def __init__(self, backend: Backend, embedded: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.embedded = embedded
        self._backend, self._loop = backend, loop

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = self._backend.call(methodcaller(verb, *arguments, **options))
            return asyncio.run_coroutine_threadsafe(result, self._loop).result()

        return call


async def rollback(request: web.Request) -> web.Response:
    """Deploy an earlier release, as `platformctl rollback --to` does; planning blocks, so it runs in a thread."""
    body = json.decode(await request.read(), type=RollbackRequest)
    embedded = ENGINE in request.app
    target = cast("Target", BlockingTarget(request.app[BACKEND], embedded, asyncio.get_running_loop()))
    generation = await asyncio.to_thread(redeploy, target, key_of(request), body.generation)
    return web.json_response({"generation": generation})


def redeploy(target: "Target", key: Key, generation: int) -> int:
    """Deploy the release of `generation` again and return its new generation."""
    from pilotlight.release import apply, history

    releases = history.releases(target, key)
    release = history.previous_release(releases, str(generation))
    note = f"rollback to generation {release.generation}"
    request = history.redeploy_request(release, None, note, newest=releases[0])
    prepared, _ = apply.prepare(request, target)
    ((_, status),) = apply.apply(request, prepared, target)
    return status.generation


ROUTES: Final = (
    Route("PUT", f"{PREFIX}{SERVICE}/canary/wish", request_action),
    Route("POST", f"{PREFIX}{SERVICE}/rollback", rollback),
)
