"""Loading and unloading of models by other models of the server, from the threads of their instances.

The server's model control does the work, in explicit mode only, as for an operator's request. Such loads take no slot
of the load queue while the caller itself holds one, and a model that would wait for its own load is refused (WAITING).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from pilotlight_predictor.errors import NotFound, NotReady, Unavailable, Unsupported
from pilotlight_predictor.served import ModelVersion

if TYPE_CHECKING:
    from pilotlight_predictor.metrics import Metrics

FindVersion = Callable[[str, int], ModelVersion]
Document = Mapping[str, Any]
Files = Mapping[str, bytes]

# Models that wait for the load or unload that runs in this context, perhaps for their own load.
WAITING: Final[ContextVar[frozenset[str]]] = ContextVar("waiting", default=frozenset())


class ModelController(Protocol):
    """The server's model control, as far as models may use it."""

    @property
    def workers(self) -> int: ...
    async def load(self, name: str, document: Document | None, files: Files) -> None: ...
    async def unload(self, name: str, dependents: bool) -> None: ...


class BlsContext:
    """Parts of the server that user code can reach. `control` is set once the server has one."""

    def __init__(self, find: FindVersion, metrics: "Metrics") -> None:
        self.find, self.metrics = find, metrics
        self.control: ModelController | None = None


class ModelManagement:
    """Blocking interface for any thread but the event loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: BlsContext) -> None:
        self._loop, self._context = loop, context
        self._waits: list[tuple[str, str]] = []  # (caller, model whose load it waits for)

    def load(self, caller: str, name: str, config: Document | None, files: Files) -> None:
        self._wait(self._load(self._control(), caller, name, config, files))

    def unload(self, caller: str, name: str, dependents: bool) -> None:
        self._wait(self._unload(self._control(), caller, name, dependents))

    def ready(self, name: str, version: int) -> bool:
        return bool(self._wait(self._ready(name, version)))

    async def _load(
        self, control: ModelController, caller: str, name: str, config: Document | None, files: Files
    ) -> None:
        self._waits.append((caller, name))
        WAITING.set(self._waiting_for(name))
        try:
            await control.load(name, config, files)
        finally:
            self._waits.remove((caller, name))

    async def _unload(self, control: ModelController, caller: str, name: str, dependents: bool) -> None:
        WAITING.set(self._waiting_for(caller) | {caller})
        await control.unload(name, dependents)

    async def _ready(self, name: str, version: int) -> bool:
        try:
            return bool(self._context.find(name, version).executor.alive)
        except (NotFound, NotReady):
            return False

    def _waiting_for(self, name: str) -> frozenset[str]:
        """Return every model whose own load or response waits, directly or not, for the load of this one."""
        waiting: set[str] = set()
        pending = [name]
        while pending:
            loading = pending.pop()
            callers = {caller for caller, target in self._waits if target == loading} - waiting
            waiting |= callers
            pending += callers
        return frozenset(waiting)

    def _control(self) -> ModelController:
        control = self._context.control
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
