"""Models that call other models of the server, from the threads of their instances: Triton's "business logic".

The registry makes one `ModelCalls`; a backend gets it in its LoadSpec. The calling thread waits for its answers, and
the model that is called runs as for any client, on the event loop or in its own threads.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, get_ident
from typing import TYPE_CHECKING

from pilotlight_predictor.call_circles import Shape, Version, Waits
from pilotlight_predictor.errors import BadRequest, NotReady, PredictorError, Unavailable
from pilotlight_predictor.executor import Ticket
from pilotlight_predictor.inference import InferRequest, InferResponse, Part
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.streaming import AHEAD

if TYPE_CHECKING:
    from pilotlight_predictor.control import ModelControl
    from pilotlight_predictor.metrics import Metrics
    from pilotlight_predictor.metrics.custom import CustomMetrics
    from pilotlight_predictor.model_management import ModelManagement

Find = Callable[[str, int], ServedVersion]
Told = Callable[[], None]


class Reach:
    """What of the server user code can reach. `control` comes once there is one."""

    def __init__(self, find: Find, metrics: "Metrics") -> None:
        self.find, self.metrics = find, metrics
        self.control: ModelControl | None = None


class ModelCalls:
    """Made on the event loop."""

    def __init__(self, reach: Reach) -> None:
        self._loop = asyncio.get_running_loop()
        self._find, self._reach = reach.find, reach
        self._waits = Waits()
        self._management: ModelManagement | None = None
        self._lock = Lock()

    @property
    def custom_metrics(self) -> "CustomMetrics":
        return self._reach.metrics.custom

    def forget_metrics(self, owner: object) -> None:
        self._reach.metrics.forget_custom(owner)

    @property
    def management(self) -> "ModelManagement":
        """In any thread; made for the first that needs it."""
        with self._lock:
            if self._management is None:
                from pilotlight_predictor.model_management import ModelManagement

                self._management = ModelManagement(self._loop, self._reach)
            return self._management

    def call(
        self, caller: Version, request: InferRequest, *, decoupled: bool, blocks: bool = True, told: Told | None = None
    ) -> "Answers":
        """In any thread. `decoupled`: any number of answers is welcome. `blocks`: an instance of the caller serves
        nobody until the end. `told` is called on the server's event loop whenever an answer has come.
        """
        answers = Answers(self._loop, told)
        thread = get_ident() if blocks else None
        try:
            self._loop.call_soon_threadsafe(self._begin, caller, request, decoupled, thread, answers)
        except RuntimeError:
            raise Unavailable("the server is stopping") from None
        return answers

    def _begin(
        self, caller: Version, request: InferRequest, decoupled: bool, thread: int | None, answers: "Answers"
    ) -> None:
        try:
            served = self._find(request.model, request.version)
            if served.decoupled and not decoupled:
                raise BadRequest(f"model '{served.name}' is decoupled: call it by exec(decoupled=True)")
            part = self._waited_for(caller, served, thread, answers.part)
            try:
                answers.begun(served.stream(request, part))
            except Exception as error:
                part(error, True)
        except Exception as error:
            answers.part(error, True)

    def _waited_for(self, caller: Version, served: ServedVersion, thread: int | None, part: Part) -> Part:
        """`part`, and the end of the wait with the last of it."""
        if thread is None:
            return part
        target = Version(served.name, served.version)
        if not self._waits.begin(caller, thread, target, self._shape):
            raise NotReady(
                f"model '{caller.name}' calls '{served.name}', all instances of which wait for '{caller.name}' itself: "
                "it would wait for ever; give one of them another instance (instance_group.count)"
            )

        def waited(result: InferResponse | Exception, final: bool) -> None:
            if final:
                self._waits.end(caller, thread, target)
            part(result, final)

        return waited

    def _shape(self, version: Version) -> Shape:
        """A model that cannot be found will say so to whoever asks it; nobody waits for it."""
        try:
            served = self._find(version.name, version.number)
            steps = [self._find(step.model, step.version) for step in served.config.ensemble]
        except PredictorError:
            return Shape(1)
        return Shape(served.instances, [Version(step.name, step.version) for step in steps])


class Answers:
    """What was answered to one call, for the thread that made it. Leaving before the end needs `cancel`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Told | None) -> None:
        self._loop, self._told = loop, told
        self._arrived: SimpleQueue[tuple[InferResponse | Exception, bool]] = SimpleQueue()
        self._ticket: Ticket | None = None
        self._paused = self._left = False
        self.ended = False

    def begun(self, ticket: Ticket) -> None:
        self._ticket = ticket
        if self._left:
            ticket.cancel()

    def part(self, result: InferResponse | Exception, final: bool) -> None:
        self._arrived.put((result, final))
        if self._ticket is not None and not final and self._arrived.qsize() >= AHEAD:
            self._pause(self._ticket)
        if self._told is not None:
            self._told()

    @property
    def waiting(self) -> bool:
        """Whether `next` would return at once."""
        return not self._arrived.empty()

    def next(self) -> tuple[InferResponse | Exception, bool]:
        """Waits for the next answer; not to be called after the one that is final."""
        result, self.ended = self._arrived.get()
        if self._paused and self._arrived.qsize() < AHEAD // 2:
            self._paused = False
            self._on_loop(self._resume)
        return result, self.ended

    def cancel(self) -> None:
        """In any thread: the rest is not wanted."""
        if not self.ended:
            self._on_loop(self._leave)

    def _pause(self, ticket: Ticket) -> None:
        self._paused = True
        ticket.pause()
        if self._arrived.qsize() < AHEAD // 2:  # its thread took them before it could see that it has to resume
            self._resume()

    def _resume(self) -> None:
        if self._ticket is not None:
            self._ticket.resume()

    def _leave(self) -> None:
        self._left = True
        if self._ticket is not None:
            self._ticket.cancel()

    def _on_loop(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return
