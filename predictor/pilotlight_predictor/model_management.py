"""Models that load and unload other models of the server, from the threads of their instances, and wait for it.

The server's own control does the work, in explicit mode alone, as for an operator's call. Two models that bring each
other while they are loaded would wait for ever: the second is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pilotlight_predictor.errors import LoadFailed, NotFound, NotReady, Unavailable, Unsupported

if TYPE_CHECKING:
    from pilotlight_predictor.control import ModelControl
    from pilotlight_predictor.model_calls import Reach

Document = Mapping[str, Any]
Files = Mapping[str, bytes]


class ModelManagement:
    """For any thread but the event loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reach: "Reach") -> None:
        self._loop, self._reach = loop, reach
        self._waits: list[tuple[str, str]] = []  # who waits for whose load

    def load(self, caller: str, name: str, config: Document | None, files: Files) -> None:
        self._wait(lambda control: self._load(control, caller, name, config, files))

    def unload(self, name: str, dependents: bool) -> None:
        self._wait(lambda control: control.unload(name, dependents))

    def ready(self, name: str, version: int) -> bool:
        async def look(_: "ModelControl") -> bool:
            try:
                return bool(self._reach.find(name, version).executor.alive)
            except (NotFound, NotReady):
                return False

        return bool(self._wait(look))

    async def _load(
        self, control: "ModelControl", caller: str, name: str, config: Document | None, files: Files
    ) -> None:
        if caller in self._led_to(name):
            raise LoadFailed(f"'{caller}' cannot load '{name}', which is it itself or waits for it: neither would end")
        self._waits.append((caller, name))
        try:
            await control.load(name, config, files)
        finally:
            self._waits.remove((caller, name))

    def _led_to(self, name: str) -> set[str]:
        """The model, and all whose loads it waits for."""
        found: set[str] = set()
        ahead = [name]
        while ahead:
            each = ahead.pop()
            if each not in found:
                found.add(each)
                ahead += [target for waiting, target in self._waits if waiting == each]
        return found

    def _wait(self, work: "Callable[[ModelControl], Awaitable[object]]") -> object:
        control = self._reach.control
        if control is None:
            raise Unsupported("this server has no control over its models")
        if control.workers > 1:
            raise Unsupported("a model of one of several --workers cannot load or unload for all of them")

        async def run() -> object:
            return await work(control)

        try:
            return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        except (RuntimeError, asyncio.CancelledError):
            raise Unavailable("the server is stopping") from None
