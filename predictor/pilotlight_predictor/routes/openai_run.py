"""One text request while a model works on it: its answer whole, or as a stream of events.

After openai.py has read the request and found the model. The first part is awaited before a stream is begun, so that
what refuses a request still has a status of its own; what fails later is an event, and the stream ends.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.dispatch import ErrorBody, error_reply
from pilotlight_predictor.inference import InferRequest
from pilotlight_predictor.protocol.openai_request import TextAsked
from pilotlight_predictor.protocol.openai_response import (
    DONE,
    Chat,
    Completion,
    Piece,
    Usage,
    error_event,
    pieces,
)
from pilotlight_predictor.routes.openai_answers import Answers, Part, abandonable
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

NAME = "openai"
EVENTS = "text/event-stream; charset=utf-8"


class Run:
    def __init__(
        self, server: Server, call: Call, served: ServedVersion, requests: Sequence[InferRequest], asked: TextAsked,
        bodies: Chat | Completion, text: str, error_body: ErrorBody,
    ) -> None:  # fmt: skip
        self._server, self._call, self._served = server, call, served
        self._requests, self._asked, self._bodies, self._text = requests, asked, bodies, text
        self._error_body = error_body
        self._usage = Usage()
        self._answers: Answers | None = None
        self._counted = False

    async def reply(self) -> Reply:
        server, limits = self._server, self._server.limits
        answers = Answers(lambda request, part: self._served.stream(request, part, limits), self._requests)
        self._answers = answers
        server.metrics.in_flight += 1
        try:
            with abandonable(self._call):
                return await (self._begun(answers) if self._asked.stream else self._whole(answers))
        except BaseException:
            answers.cancel()
            server.metrics.in_flight -= 1  # the dispatcher counts what is refused
            raise

    async def _whole(self, answers: Answers) -> Reply:
        said: dict[int, Piece] = {}
        while (part := await answers.next()) is not None:
            for piece in self._pieces(part):
                whole = said.setdefault(piece.index, Piece(piece.index, ""))
                whole.text += piece.text
                whole.finish = piece.finish or whole.finish or ("stop" if part.final else "")
                whole.logprobs = [*whole.logprobs, *piece.logprobs]
        choices = [said[index] for index in sorted(said)]
        reply = Reply(200, [self._bodies.whole(choices, self._usage.told())])
        self.end(200)
        return reply

    async def _begun(self, answers: Answers) -> Reply:
        first = await answers.next()
        events = Events(self, answers, first)
        self._call.on_abandon = events.abandon
        return Reply(200, events, EVENTS, {"Cache-Control": "no-cache"})

    def events(self, part: Part, opened: set[int]) -> bytes:
        """What a part tells, as bytes of the stream."""
        told = []
        for piece in self._pieces(part):
            if piece.index not in opened:
                opened.add(piece.index)
                told.append(self._bodies.opening(piece.index))
            if piece.text or piece.finish or piece.logprobs:
                told.append(self._bodies.chunk(piece))
        return b"".join(told)

    def last_events(self) -> bytes:
        return (self._bodies.last(self._usage.told()) if self._asked.include_usage else b"") + DONE

    def failed(self, error: Exception) -> bytes:
        reply = error_reply(self._error_body, error, self._call)
        assert isinstance(reply.body, list)
        return error_event(b"".join(map(bytes, reply.body)))

    def _pieces(self, part: Part) -> list[Piece]:
        found = pieces(part.response.outputs, self._text, part.final)
        self._usage.note(part.number, part.response.outputs, found)
        for piece in found:
            piece.index += part.number * self._asked.n
        return found

    def end(self, status: int) -> None:
        """Once, however it ends: nothing more is wanted of the model, and the request is counted."""
        if self._counted:
            return
        self._counted = True
        self._call.on_abandon = None
        if self._answers is not None:
            self._answers.cancel()
        self._server.observe(self._served, NAME, status, perf_counter() - self._call.started)


class Events:
    """The body of a stream. It ends when the model does, when the client leaves, or when nobody reads it any more."""

    def __init__(self, run: Run, answers: Answers, first: Part | None) -> None:
        self._run, self._answers, self._first = run, answers, first
        self._opened: set[int] = set()
        self._over = False

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> bytes:
        while not self._over:
            told = await self._next()
            if told:
                return told
        raise StopAsyncIteration

    async def _next(self) -> bytes:
        try:
            part, self._first = self._first or await self._answers.next(), None
        except Exception as error:
            self._over = True
            told = self._run.failed(error)
            self._run.end(getattr(error, "status", 500))
            return told
        if part is not None:
            return self._run.events(part, self._opened)
        self._over = True
        told = self._run.last_events()
        self._run.end(200)
        return told

    def abandon(self) -> None:
        self._over = True
        self._run.end(499)

    async def aclose(self) -> Any:
        self.abandon()
