"""An earlier release deployed again, for a button of the console: what `platformctl rollback --to` does.

Planning blocks, so it happens in a thread, which asks what stands behind the API by way of its event loop.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aiohttp import web
from msgspec import Struct, json

from pilotlight.api.areas import Route
from pilotlight.api.backing import Backing
from pilotlight.api.keys import BACKING, ENGINE
from pilotlight.api.services import SERVICE, key_of
from pilotlight.console.gate import PREFIX
from pilotlight.manifests import Manifest
from pilotlight.targets.target import Key, Release, ServiceStatus

if TYPE_CHECKING:
    from pilotlight.targets.target import Target

T = TypeVar("T")


class Wanted(Struct, frozen=True):
    generation: int


class Planned:
    """As much of a target as a plan needs, for a thread beside the loop that the backing belongs to."""

    def __init__(self, backing: Backing, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._backing, self._loop = backing, loop

    def _wait(self, asked: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    def status(self, key: Key) -> ServiceStatus:
        return self._wait(self._backing.status(key))

    def live(self, key: Key) -> list[Manifest]:
        return [Manifest(dict(document)) for document in self._wait(self._backing.live(key))]

    def releases(self, key: Key) -> Sequence[Release]:
        return self._wait(self._backing.releases(key))

    def apply(self, release: Release, *, reset: bool = False, dry_run: bool = False) -> ServiceStatus:
        return self._wait(self._backing.apply(release, reset=reset, dry_run=dry_run))


async def rollback(request: web.Request) -> web.Response:
    wanted = json.decode(await request.read(), type=Wanted)
    name = "local" if ENGINE in request.app else "kubernetes"
    target = cast("Target", Planned(request.app[BACKING], name, asyncio.get_running_loop()))
    generation = await asyncio.to_thread(again, target, key_of(request), wanted.generation)
    return web.json_response({"generation": generation})


def again(target: "Target", key: Key, generation: int) -> int:
    """The generation that it has become."""
    from pilotlight import history, releasing

    chosen = history.earlier(history.releases(target, key), str(generation))
    wanted = history.again(chosen, None, f"rollback to generation {chosen.generation}")
    prepared, _ = releasing.prepare(wanted, target)
    ((_, status),) = releasing.apply(wanted, prepared, target)
    return status.generation


ROUTES: Final = (Route("POST", f"{PREFIX}{SERVICE}/rollback", rollback),)
