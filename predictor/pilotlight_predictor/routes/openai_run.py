"""Chat and text completions of the OpenAI protocol, as one response or as a stream of events.

The first part is awaited before a stream starts, so that a rejected request gets its own status; a later error is an
event, which ends the stream.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from pilotlight_predictor.calls import HttpRequest, HttpResponse
from pilotlight_predictor.dispatch import ErrorBody, error_response
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.protocol.openai_request import TextRequest
from pilotlight_predictor.protocol.openai_response import (
    DONE,
    ChatBodies,
    ChoiceDelta,
    CompletionBodies,
    Usage,
    choice_deltas,
    error_event,
)
from pilotlight_predictor.routes.openai_answers import ResponseMerger, ResponsePart, cancel_on_disconnect
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server

NAME = "openai"
EVENTS = "text/event-stream; charset=utf-8"


class TextGeneration:
    """One chat or completion; `text` is the model's output with the generated text."""

    def __init__(
        self, server: Server, request: HttpRequest, served: ModelVersion, requests: Sequence[InferRequest],
        text_request: TextRequest, bodies: ChatBodies | CompletionBodies, text: str, error_body: ErrorBody,
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
            lambda infer_request, part: self._served.stream(infer_request, part, limits), self._requests
        )
        self._merger = merger
        server.metrics.in_flight += 1
        try:
            with cancel_on_disconnect(self._request):
                return await (self._start_stream(merger) if self._text_request.stream else self._whole(merger))
        except BaseException:
            merger.cancel()
            server.metrics.in_flight -= 1  # the dispatcher counts rejected requests
            raise

    async def _whole(self, merger: ResponseMerger) -> HttpResponse:
        choices_by_index: dict[int, ChoiceDelta] = {}
        while (part := await merger.next()) is not None:
            for delta in self._deltas(part):
                whole = choices_by_index.setdefault(delta.index, ChoiceDelta(delta.index, ""))
                whole.text += delta.text
                whole.finish = delta.finish or whole.finish or ("stop" if part.final else "")
                whole.logprobs = [*whole.logprobs, *delta.logprobs]
        choices = [choices_by_index[index] for index in sorted(choices_by_index)]
        response = HttpResponse(200, [self._bodies.whole(choices, self._usage.as_json())])
        self.end(200)
        return response

    async def _start_stream(self, merger: ResponseMerger) -> HttpResponse:
        first = await merger.next()
        events = CompletionEvents(self, merger, first)
        self._request.on_abandon = events.abandon
        return HttpResponse(200, events, EVENTS, {"Cache-Control": "no-cache"})

    def events(self, part: ResponsePart, opened: set[int]) -> bytes:
        """Return the events of a part."""
        events = []
        for delta in self._deltas(part):
            if delta.index not in opened:
                opened.add(delta.index)
                events.append(self._bodies.opening(delta.index))
            if delta.text or delta.finish or delta.logprobs:
                events.append(self._bodies.chunk(delta))
        return b"".join(events)

    def last_events(self) -> bytes:
        return (self._bodies.last(self._usage.as_json()) if self._text_request.include_usage else b"") + DONE

    def failed(self, error: Exception) -> bytes:
        response = error_response(self._error_body, error, self._request)
        assert isinstance(response.body, list)
        return error_event(b"".join(map(bytes, response.body)))

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
        self._server.observe(self._served, NAME, status, perf_counter() - self._request.started)


class CompletionEvents:
    """Body of a stream of events; ends with the last response or when the client disconnects."""

    def __init__(self, run: TextGeneration, merger: ResponseMerger, first: ResponsePart | None) -> None:
        self._run, self._merger, self._first = run, merger, first
        self._opened: set[int] = set()
        self._done = False

    def __aiter__(self) -> "CompletionEvents":
        return self

    async def __anext__(self) -> bytes:
        while not self._done:
            events = await self._next()
            if events:
                return events
        raise StopAsyncIteration

    async def _next(self) -> bytes:
        try:
            part, self._first = self._first or await self._merger.next(), None
        except Exception as error:
            self._done = True
            events = self._run.failed(error)
            self._run.end(getattr(error, "status", 500))
            return events
        if part is not None:
            return self._run.events(part, self._opened)
        self._done = True
        events = self._run.last_events()
        self._run.end(200)
        return events

    def abandon(self) -> None:
        self._done = True
        self._run.end(499)

    async def aclose(self) -> Any:
        self.abandon()
