"""Business logic scripting (BLS): models that call, load or unload other models, from the threads of their instances.

The load queue makes one BlsClient; a backend gets it in its LoadSpec. The calling thread blocks for its responses; the
called model runs as for any client. Loads are done by the server's model control, in explicit mode only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pilotlight_predictor.backends.base import VersionId
from pilotlight_predictor.core.requests import InferRequest, InferResponse, Part
from pilotlight_predictor.errors import BadRequest, NotFound, NotReady, PredictorError, Unavailable, Unsupported
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.scheduling.executor_interface import Ticket
from pilotlight_predictor.scheduling.streaming import MAX_UNREAD

if TYPE_CHECKING:
    from pilotlight_predictor.metrics import Metrics
    from pilotlight_predictor.metrics.custom import CustomMetrics


FindVersion = Callable[[str, int], ModelVersion]
Document = Mapping[str, Any]
Files = Mapping[str, bytes]

# Models that wait for the load or unload that runs in this context, perhaps for their own load: such a load takes no
# slot of the load queue, since its caller may hold one, and a model that would wait for its own load is refused.
WAITING: Final[ContextVar[frozenset[str]]] = ContextVar("waiting", default=frozenset())


class VersionCapacity(NamedTuple):
    """Instances of a version; `steps` are the models of an ensemble, all of which must make progress."""

    instances: int
    steps: Sequence[VersionId] = ()


CapacityOf = Callable[[VersionId], VersionCapacity]


class DeadlockDetector:
    """Wait-for graph of the instances that wait for other models. Pure.

    An instance that waits for a response serves no other request. If A calls B while B calls A and each has one
    instance, both wait until the server stops. So each call is checked before it is made: a model *makes progress* if
    one of its instances does not wait, or waits only for models that make progress. A call of one without is refused.

        A (1 instance) → B (1 idle instance)             B makes progress: allowed, one instance of A waits for B
        B → A at the same time                           all of A wait for B, all of B would wait for A: refused
        B → A, but A has a second instance that is idle  A makes progress
    """

    def __init__(self) -> None:
        self._waiting: dict[VersionId, dict[int, list[VersionId]]] = {}  # by model, by the instance's thread

    def begin(self, caller: VersionId, thread: int, target: VersionId, capacity_of: CapacityOf) -> bool:
        """Record that the caller waits for the target. Return False, and record nothing, if that is a deadlock."""
        self._waiting.setdefault(caller, {}).setdefault(thread, []).append(target)
        if self._progresses(target, capacity_of, frozenset()):
            return True
        self.end(caller, thread, target)
        return False

    def end(self, caller: VersionId, thread: int, target: VersionId) -> None:
        threads = self._waiting[caller]
        threads[thread].remove(target)
        if not threads[thread]:
            del threads[thread]
        if not threads:
            del self._waiting[caller]

    def _progresses(self, version: VersionId, capacity_of: CapacityOf, visited: frozenset[VersionId]) -> bool:
        if version in visited:  # a cycle in which every instance waits
            return False
        capacity, visited = capacity_of(version), visited | {version}
        if capacity.steps:
            return all(self._progresses(step, capacity_of, visited) for step in capacity.steps)
        waiting = self._waiting.get(version, {})
        if len(waiting) < capacity.instances:
            return True
        return any(
            all(self._progresses(each, capacity_of, visited) for each in targets) for targets in waiting.values()
        )


class ModelController(Protocol):
    """The server's model control, as far as models may use it."""

    @property
    def workers(self) -> int: ...
    async def load(self, name: str, document: Document | None, files: Files) -> None: ...
    async def unload(self, name: str, dependents: bool) -> None: ...


class BlsContext:
    """Parts of the server that user code can reach. `control` is set once the server has one.

    `announce`: returns once every process of the server knows of a load or unload.
    """

    def __init__(self, find: FindVersion, metrics: "Metrics") -> None:
        self.find, self.metrics = find, metrics
        self.control: ModelController | None = None
        self.announce: Callable[[], Awaitable[None]] | None = None


class ModelManagement:
    """Loads and unloads on behalf of models: blocking, from any thread but the event loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: BlsContext) -> None:
        self._loop, self._context = loop, context
        self._waits: list[tuple[str, str]] = []  # (caller, model whose load it waits for)

    def load(self, caller: str, name: str, config: Document | None, files: Files) -> None:
        control = self._control()

        async def load() -> None:
            self._waits.append((caller, name))
            WAITING.set(self._waiting_for(name))
            try:
                await control.load(name, config, files)
            finally:
                self._waits.remove((caller, name))
            await self._announce()

        self._wait(load())

    def unload(self, caller: str, name: str, dependents: bool) -> None:
        control = self._control()

        async def unload() -> None:
            WAITING.set(self._waiting_for(caller) | {caller})
            await control.unload(name, dependents)
            await self._announce()

        self._wait(unload())

    async def _announce(self) -> None:
        if self._context.announce is not None:
            await self._context.announce()

    def ready(self, name: str, version: int) -> bool:
        async def ready() -> bool:
            try:
                return bool(self._context.find(name, version).executor.alive)
            except (NotFound, NotReady):
                return False

        return bool(self._wait(ready()))

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
            raise Unsupported("this server does not support model control")
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


class BlsClient:
    """Client of the server's own models, for backends (backends.base.ModelCaller). Created on the event loop."""

    def __init__(self, context: BlsContext) -> None:
        self._loop = asyncio.get_running_loop()
        self._find, self._metrics = context.find, context.metrics
        self._deadlocks = DeadlockDetector()
        self._refused: set[VersionId] = set()  # versions that called a model before it was ready
        self.management = ModelManagement(self._loop, context)

    @property
    def custom_metrics(self) -> "CustomMetrics":
        return self._metrics.custom

    def forget_metrics(self, owner: object) -> None:
        self._metrics.forget_custom(owner)

    def take_refused(self, caller: VersionId) -> bool:
        refused = caller in self._refused
        self._refused.discard(caller)
        return refused

    def call(
        self,
        caller: VersionId,
        request: InferRequest,
        *,
        decoupled: bool,
        blocks: bool = True,
        on_response: Callable[[], None] | None = None,
    ) -> "CallResponses":
        responses = CallResponses(self._loop, on_response)
        thread = get_ident() if blocks else None
        try:
            self._loop.call_soon_threadsafe(self._start, caller, request, decoupled, thread, responses)
        except RuntimeError:
            raise Unavailable("the server is stopping") from None
        return responses

    def _start(
        self, caller: VersionId, request: InferRequest, decoupled: bool, thread: int | None, responses: "CallResponses"
    ) -> None:
        try:
            version = self._find(request.model, request.version)
            if version.decoupled and not decoupled:
                raise BadRequest(f"model '{version.name}' is decoupled: call it by exec(decoupled=True)")
            part = self._track_wait(caller, version, thread, responses.part)
            try:
                responses.started(version.stream(request, part))
            except Exception as error:
                part(error, True)
        except Exception as error:
            if isinstance(error, NotReady):
                self._refused.add(caller)
            responses.part(error, True)

    def _track_wait(self, caller: VersionId, version: ModelVersion, thread: int | None, part: Part) -> Part:
        """Record that the caller's instance waits; the returned callback ends the wait with the final response."""
        if thread is None:
            return part
        target = VersionId(version.name, version.version)
        if not self._deadlocks.begin(caller, thread, target, self._capacity):
            raise NotReady(
                f"model '{caller.name}' calls '{version.name}', all instances of which wait for '{caller.name}'"
                " itself: this would deadlock; give one of them another instance (instance_group.count)"
            )

        def tracked(result: InferResponse | Exception, final: bool) -> None:
            if final:
                self._deadlocks.end(caller, thread, target)
            part(result, final)

        return tracked

    def _capacity(self, version_id: VersionId) -> VersionCapacity:
        try:
            version = self._find(version_id.name, version_id.number)
            steps = [self._find(step.model, step.version) for step in version.config.ensemble]
        except PredictorError:  # a missing model fails at once: no call waits for it
            return VersionCapacity(1)
        return VersionCapacity(version.instances, [VersionId(step.name, step.version) for step in steps])


class CallResponses:
    """Responses of one call, passed from the event loop to the calling thread (backends.base.ModelResponses)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_response: Callable[[], None] | None) -> None:
        self._loop, self._on_response = loop, on_response
        self._queue: SimpleQueue[tuple[InferResponse | Exception, bool]] = SimpleQueue()
        self._ticket: Ticket | None = None
        self._paused = self._cancelled = False
        self.ended = False

    def started(self, ticket: Ticket) -> None:
        self._ticket = ticket
        if self._cancelled:
            ticket.cancel()

    def part(self, result: InferResponse | Exception, final: bool) -> None:
        self._queue.put((result, final))
        if self._ticket is not None and not final and self._queue.qsize() >= MAX_UNREAD:
            self._paused = True
            self._ticket.pause()
            if self._queue.qsize() < MAX_UNREAD // 2:  # the thread emptied the queue before it saw _paused
                self._resume()
        if self._on_response is not None:
            self._on_response()

    @property
    def waiting(self) -> bool:
        return not self._queue.empty()

    def next(self) -> tuple[InferResponse | Exception, bool]:
        result, self.ended = self._queue.get()
        if self._paused and self._queue.qsize() < MAX_UNREAD // 2:
            self._paused = False
            self._on_loop(self._resume)
        return result, self.ended

    def cancel(self) -> None:
        if not self.ended:
            self._on_loop(self._cancel)

    def _resume(self) -> None:
        if self._ticket is not None:
            self._ticket.resume()

    def _cancel(self) -> None:
        self._cancelled = True
        if self._ticket is not None:
            self._ticket.cancel()

    def _on_loop(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop is closed
            return
