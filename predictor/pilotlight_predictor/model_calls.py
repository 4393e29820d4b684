"""Calls of models by other models of the server, from the threads of their instances: business logic scripting (BLS).

The load queue makes one BlsClient; a backend gets it in its LoadSpec. The calling thread blocks for its responses; the
called model runs as for any client, on the event loop or in its own threads.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING

from pilotlight_predictor.backends.base import VersionId
from pilotlight_predictor.call_circles import DeadlockDetector, VersionCapacity
from pilotlight_predictor.errors import BadRequest, NotReady, PredictorError, Unavailable
from pilotlight_predictor.executor import Ticket
from pilotlight_predictor.inference import InferRequest, InferResponse, Part
from pilotlight_predictor.model_management import BlsContext, ModelManagement
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.streaming import MAX_UNREAD

if TYPE_CHECKING:
    from pilotlight_predictor.metrics.custom import CustomMetrics


class BlsClient:
    """Client of the server's own models, for backends (backends.base.ModelCaller). Created on the event loop."""

    def __init__(self, context: BlsContext) -> None:
        self._loop = asyncio.get_running_loop()
        self._find, self._metrics = context.find, context.metrics
        self._deadlocks = DeadlockDetector()
        self.management = ModelManagement(self._loop, context)

    @property
    def custom_metrics(self) -> "CustomMetrics":
        return self._metrics.custom

    def forget_metrics(self, owner: object) -> None:
        self._metrics.forget_custom(owner)

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
            responses.part(error, True)

    def _track_wait(self, caller: VersionId, version: ModelVersion, thread: int | None, part: Part) -> Part:
        """Record that the caller's instance waits; the returned callback ends the wait with the final response."""
        if thread is None:
            return part
        target = VersionId(version.name, version.version)
        if not self._deadlocks.begin(caller, thread, target, self._capacity):
            raise NotReady(
                f"model '{caller.name}' calls '{version.name}', all instances of which wait for '{caller.name}' itself:"
                " it would wait for ever; give one of them another instance (instance_group.count)"
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
            self._pause(self._ticket)
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

    def _pause(self, ticket: Ticket) -> None:
        self._paused = True
        ticket.pause()
        if self._queue.qsize() < MAX_UNREAD // 2:  # the thread emptied the queue before it saw _paused
            self._resume()

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
