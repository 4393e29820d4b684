"""Canary and rollback buttons.

Canaries in the console: the whole history, and actions (promote, abort ...) requested by a button.

The requested action is saved with the canary, as `platformctl canary` does; the canary's controller executes it.

Rollback button of the console: deploy an earlier release, as `platformctl rollback --to` does.

Planning blocks, so it runs in a thread, which calls the API's backend through the event loop.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.backend import BACKEND, ENGINE, ServiceBackend
from pilotlight.api.routing import Route
from pilotlight.api.services import SERVICE, key_of
from pilotlight.canary import state_store
from pilotlight.canary.types import CanaryCommand
from pilotlight.console.sessions import PREFIX
from pilotlight.errors import Conflict
from pilotlight.k8s.manifests import Manifest
from pilotlight.targets.target import CanaryRecord, Key, Release, ServiceStatus

if TYPE_CHECKING:
    from pilotlight.targets.target import Target


class ActionRequest(Struct, frozen=True):
    wish: CanaryCommand


def history_body(canary: CanaryRecord | None) -> dict[str, Any]:
    """Return the history with all fields; the stored one omits defaults."""
    whole: dict[str, Any] = to_builtins(state_store.decode_history(canary))
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
    for _ in range(state_store.MAX_ATTEMPTS):
        state, version = state_store.with_command(await backend.canary(key), key, action)
        with suppress(Conflict):
            return web.json_response(history_body(await backend.save_canary(key, state, version)))
    raise state_store.too_many_conflicts(key)


CANARIES_ROUTES: Final = (Route("PUT", f"{PREFIX}{SERVICE}/canary/wish", request_action),)


T = TypeVar("T")


class RollbackRequest(Struct, frozen=True):
    generation: int


class BlockingTarget:
    """The part of a target that planning needs, over a backend of another thread's event loop."""

    def __init__(self, backend: ServiceBackend, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._backend, self._loop = backend, loop

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def status(self, key: Key) -> ServiceStatus:
        return self._wait(self._backend.status(key))

    def live(self, key: Key) -> list[Manifest]:
        return [Manifest(dict(document)) for document in self._wait(self._backend.live(key))]

    def releases(self, key: Key) -> Sequence[Release]:
        return self._wait(self._backend.releases(key))

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        return self._wait(self._backend.apply(release, reset=reset, dry_run=dry_run))


async def rollback(request: web.Request) -> web.Response:
    body = json.decode(await request.read(), type=RollbackRequest)
    name = "local" if ENGINE in request.app else "kubernetes"
    target = cast("Target", BlockingTarget(request.app[BACKEND], name, asyncio.get_running_loop()))
    generation = await asyncio.to_thread(redeploy, target, key_of(request), body.generation)
    return web.json_response({"generation": generation})


def redeploy(target: "Target", key: Key, generation: int) -> int:
    """Deploy the release of `generation` again and return its new generation."""
    from pilotlight.release import apply as release_apply
    from pilotlight.release import history

    chosen = history.previous_release(history.releases(target, key), str(generation))
    wanted = history.redeploy_request(chosen, None, f"rollback to generation {chosen.generation}")
    prepared, _ = release_apply.prepare(wanted, target)
    ((_, status),) = release_apply.apply(wanted, prepared, target)
    return status.generation


ROUTES: Final = (Route("POST", f"{PREFIX}{SERVICE}/rollback", rollback),)
