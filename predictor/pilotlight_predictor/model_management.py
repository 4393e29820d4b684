"""Models that load and unload other models of the server, from the threads of their instances, and wait for it.

The server's own control does the work, in explicit mode alone, as for an operator's call. Loads that models ask for
take no slot of those that wait for them, and a model that would wait for itself is refused (loading.WAITING).
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from pilotlight_predictor.errors import NotFound, NotReady, Unavailable, Unsupported
from pilotlight_predictor.loading import WAITING

if TYPE_CHECKING:
    from pilotlight_predictor.control import ModelControl
    from pilotlight_predictor.model_calls import Reach

Document = Mapping[str, Any]
Files = Mapping[str, bytes]


class ModelManagement:
    """For any thread but the event loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reach: "Reach") -> None:
        self._loop, self._reach = loop, reach
        self._waits: list[tuple[str, str]] = []  # who waits for the load of whom

    def load(self, caller: str, name: str, config: Document | None, files: Files) -> None:
        self._wait(self._load(self._control(), caller, name, config, files))

    def unload(self, caller: str, name: str, dependents: bool) -> None:
        self._wait(self._unload(self._control(), caller, name, dependents))

    def ready(self, name: str, version: int) -> bool:
        return bool(self._wait(self._ready(name, version)))

    async def _load(
        self, control: "ModelControl", caller: str, name: str, config: Document | None, files: Files
    ) -> None:
        self._waits.append((caller, name))
        WAITING.set(self._waiting_for(name))
        try:
            await control.load(name, config, files)
        finally:
            self._waits.remove((caller, name))

    async def _unload(self, control: "ModelControl", caller: str, name: str, dependents: bool) -> None:
        WAITING.set(self._waiting_for(caller) | {caller})
        await control.unload(name, dependents)

    async def _ready(self, name: str, version: int) -> bool:
        try:
            return bool(self._reach.find(name, version).executor.alive)
        except (NotFound, NotReady):
            return False

    def _waiting_for(self, name: str) -> frozenset[str]:
        """Every model whose own load or answer waits for the load of this one."""
        found: set[str] = set()
        ahead = [name]
        while ahead:
            each = ahead.pop()
            new = {caller for caller, target in self._waits if target == each} - found
            found |= new
            ahead += new
        return frozenset(found)

    def _control(self) -> "ModelControl":
        control = self._reach.control
        if control is None:
            raise Unsupported("this server has no control over its models")
        if control.workers > 1:
            raise Unsupported("a model of one of several --workers cannot load or unload for all of them")
        return control

    def _wait(self, work: Coroutine[Any, Any, object]) -> object:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Unavailable("the server is stopping") from None
        try:
            return future.result()
        except asyncio.CancelledError:
            raise Unavailable("the server is stopping") from None
