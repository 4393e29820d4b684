"""Chat and text completions of the OpenAI protocol, as one response or as a stream of events.

The responses of a model to the inferences of one request are merged in order of arrival. The first is awaited before a
stream starts, so that a rejected request gets its own status; a later error is an event, which ends the stream.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol

from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.requests import InferRequest, InferResponse
from pilotlight_predictor.errors import Cancelled
from pilotlight_predictor.frontends.http.messages import HttpRequest, HttpResponse
from pilotlight_predictor.frontends.http.router import ErrorBody, error_response
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.json_values import LONG
from pilotlight_predictor.protocols.openai.request import TextRequest
from pilotlight_predictor.protocols.openai.response import ChoiceDelta, Usage, choice_deltas
from pilotlight_predictor.protocols.run_inference import is_long, off_loop
from pilotlight_predictor.scheduling.streaming import ResponseReader
from pilotlight_predictor.server.handler_context import Server

NAME: Final = "openai"
EVENTS: Final = "text/event-stream; charset=utf-8"


class Bodies(Protocol):
    """Bodies of one request: `whole`, or the events `opening` and `chunk` of each choice, and `last`."""

    def whole(self, choices: Sequence[ChoiceDelta], usage: dict[str, int] | None) -> list[Buffer]: ...
    def opening(self, index: int) -> bytes: ...
    def chunk(self, delta: ChoiceDelta) -> bytes: ...
    def last(self, usage: dict[str, int] | None) -> bytes: ...


class ResponsePart(NamedTuple):
    """Response to the inference `number`; `final` if it is the last one."""

    number: int
    response: InferResponse
    final: bool


class ResponseMerger(ResponseReader):
    """Reader of the responses to the inferences of one request."""

    async def next(self) -> ResponsePart | None:
        """Return the next part; None after the last one. Raise if a model fails, and cancel the other inferences."""
        received = await anext(self, None)
        if received is None:
            return None
        number, result, final = received
        if isinstance(result, Exception):
            self.cancel()
            try:
                raise result
            finally:
                del result, received  # the traceback refers to this frame
        return ResponsePart(number, result, final)


@contextmanager
def cancel_on_disconnect(request: HttpRequest) -> Iterator[None]:
    """Raise Cancelled in the block when the client disconnects; the caller cancels what it started."""
    task = asyncio.current_task()
    assert task is not None

    def cancel() -> None:
        task.cancel()

    request.on_abandon = cancel
    try:
        yield
    except asyncio.CancelledError:
        if not request.abandoned:
            raise
        task.uncancel()
        raise Cancelled("the client disconnected") from None
    finally:
        if request.on_abandon is cancel:
            request.on_abandon = None


class TextGeneration:
    """One chat or completion; `text` is the model's output with the generated text."""

    def __init__(
        self, server: Server, request: HttpRequest, served: ModelVersion, requests: Sequence[InferRequest],
        text_request: TextRequest, bodies: Bodies, text: str, error_body: ErrorBody,
    ) -> None:  # fmt: skip
        self._server, self._request, self._served = server, request, served
        self._requests, self._text_request, self._bodies, self._text = requests, text_request, bodies, text
        self._error_body = error_body
        self._usage = Usage()
        self._merger: ResponseMerger | None = None
        self._counted = False

    async def respond(self) -> HttpResponse:
        server, limits = self._server, self._server.limits
        merger = ResponseMerger(
            lambda infer_request, part: self._served.stream(infer_request, part, limits), *self._requests
        )
        self._merger = merger
        server.metrics.in_flight += 1
        try:
            with cancel_on_disconnect(self._request):
                if not self._text_request.stream:
                    return await self._whole(merger)
                events = CompletionEvents(self, merger, await merger.next())
            self._request.on_abandon = events.abandon
            return HttpResponse(200, events, EVENTS, {"Cache-Control": "no-cache"})
        except BaseException:
            merger.cancel()
            server.metrics.in_flight -= 1  # the dispatcher counts rejected requests
            raise

    async def _whole(self, merger: ResponseMerger) -> HttpResponse:
        choices_by_index: dict[int, ChoiceDelta] = {}
        while (part := await merger.next()) is not None:
            for delta in await off_loop(self._server, is_long(part.response), partial(self._deltas, part)):
                whole = choices_by_index.setdefault(delta.index, ChoiceDelta(delta.index, ""))
                whole.text += delta.text
                whole.finish = delta.finish or whole.finish or ("stop" if part.final else "")
                whole.logprobs = [*whole.logprobs, *delta.logprobs]
                whole.tool_calls = [*whole.tool_calls, *delta.tool_calls]
        choices = [choices_by_index[index] for index in sorted(choices_by_index)]
        long = sum(len(choice.text) for choice in choices) > LONG
        body = await off_loop(self._server, long, lambda: self._bodies.whole(choices, self._usage.as_json()))
        self.end(200)
        return HttpResponse(200, body)

    async def events(self, part: ResponsePart, opened: set[int]) -> bytes:
        return await off_loop(self._server, is_long(part.response), lambda: self._events(part, opened))

    def _events(self, part: ResponsePart, opened: set[int]) -> bytes:
        events = []
        for delta in self._deltas(part):
            for index in range(delta.index + 1):  # in order: clients append a choice when its first chunk comes
                if index not in opened:
                    opened.add(index)
                    events.append(self._bodies.opening(index))
            if delta:
                events.append(self._bodies.chunk(delta))
        return b"".join(events)

    def last_events(self) -> bytes:
        return self._bodies.last(self._usage.as_json())

    def failed(self, error: Exception) -> bytes:
        response = error_response(self._error_body, error, self._request)
        assert isinstance(response.body, list)
        return b"data: %b\n\n" % b"".join(map(bytes, response.body))

    def _deltas(self, part: ResponsePart) -> list[ChoiceDelta]:
        deltas = choice_deltas(part.response.outputs, self._text, part.final)
        self._usage.add(part.number, part.response.outputs, deltas)
        for delta in deltas:
            delta.index += part.number * self._text_request.n
        return deltas

    def end(self, status: int) -> None:
        """Cancel the model and count the request, once."""
        if self._counted:
            return
        self._counted = True
        self._request.on_abandon = None
        if self._merger is not None:
            self._merger.cancel()
        seconds, adapter = perf_counter() - self._request.started, self._text_request.adapter
        self._server.observe(self._served, NAME, status, seconds, adapter)


class CompletionEvents:
    """Body of a stream of events, which ends with the last response or when the client disconnects."""

    def __init__(self, run: TextGeneration, merger: ResponseMerger, first: ResponsePart | None) -> None:
        self._run, self._merger, self._first = run, merger, first
        self._opened: set[int] = set()
        self._done = False

    def __aiter__(self) -> "CompletionEvents":
        return self

    async def __anext__(self) -> bytes:
        while not self._done:
            try:
                part, self._first = self._first or await self._merger.next(), None
            except Exception as error:
                self._done, events = True, self._run.failed(error)
                self._run.end(getattr(error, "status", 500))
                return events
            if part is None:
                self._done, events = True, self._run.last_events()
                self._run.end(200)
                return events
            if events := await self._run.events(part, self._opened):
                return events
        raise StopAsyncIteration

    def abandon(self) -> None:
        self._done = True
        self._run.end(499)

    async def aclose(self) -> Any:
        self.abandon()
