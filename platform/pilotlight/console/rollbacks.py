"""Rollback button of the console: deploy an earlier release, as `platformctl rollback --to` does.

Planning blocks, so it runs in a thread, which calls the API's backend through the event loop.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.areas import Route
from pilotlight.api.backing import ServiceBackend
from pilotlight.api.keys import BACKEND, ENGINE
from pilotlight.api.services import SERVICE, key_of
from pilotlight.console.gate import PREFIX
from pilotlight.manifests import Manifest
from pilotlight.targets.target import Key, Release, ServiceStatus

if TYPE_CHECKING:
    from pilotlight.targets.target import Target

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
    from pilotlight import history, releasing

    chosen = history.previous_release(history.releases(target, key), str(generation))
    wanted = history.redeploy_request(chosen, None, f"rollback to generation {chosen.generation}")
    prepared, _ = releasing.prepare(wanted, target)
    ((_, status),) = releasing.apply(wanted, prepared, target)
    return status.generation


ROUTES: Final = (Route("POST", f"{PREFIX}{SERVICE}/rollback", rollback),)
