"""One client's request to /predict while a model works on it: its parts run a few at a time, its answer comes once.

Between the route (predict.py), which reads the body, and the model's queue. A batch may be larger than the model's, so
it can be several requests; they meet those of other clients in the queue.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.calls import Call, Reply, json_reply
from pilotlight_predictor.dispatch import ErrorBody, error_reply
from pilotlight_predictor.errors import BadRequest, Cancelled, DeadlineExceeded
from pilotlight_predictor.executor import Ticket
from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.protocol.predict_request import Invalid, Part
from pilotlight_predictor.protocol.predict_response import document
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server

NAME: Final = "predict"
AT_ONCE: Final = 8  # parts of one request in the model's queue: others have their turn between them
MANY: Final = 1 << 16  # elements; more of them are written in a thread
_ENCODING: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly


class Run:
    """`finish` is called exactly once, on the event loop, with what the client is told."""

    def __init__(
        self,
        server: Server,
        call: Call,
        served: ServedVersion,
        parts: Sequence[Part],
        error_body: ErrorBody,
        batch: bool,
    ) -> None:
        self._server, self._call, self._served = server, call, served
        self._parts, self._error_body, self._batch = parts, error_body, batch
        self._answers: list[InferResponse | None] = [None] * len(parts)
        self._tickets: dict[int, Ticket] = {}
        self._next = self._running = 0
        self._filling = self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, finish: Callable[[Reply], None]) -> None:
        self._finish = finish
        self._server.metrics.in_flight += 1
        self._call.on_abandon = lambda: self._end(Cancelled("the client has gone"))
        timeout_s = self._server.predict_limits.timeout_s
        if timeout_s and len(self._parts) > 1:  # a single part has its own time limit
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)
        self._fill()

    def _fill(self) -> None:
        """Some answers come within the call that asks for them: those must not call this again from within."""
        self._filling = True
        while self._next < len(self._parts) and self._running < AT_ONCE and not self._over:
            self._submit(self._next)
        self._filling = False
        if self._next == len(self._parts) and not self._running:
            self._end(None)

    def _submit(self, index: int) -> None:
        self._next, self._running = self._next + 1, self._running + 1
        request = self._parts[index].request
        request.request_id = self._call.headers.get(HEADER_REQUEST_ID, "")
        try:
            ticket = self._served.infer(request, partial(self._done, index), self._server.predict_limits)
        except BadRequest as error:
            self._end(Invalid(str(error)))
        except Exception as error:
            self._end(error)
        else:
            if self._answers[index] is None:
                self._tickets[index] = ticket

    def _done(self, index: int, result: InferResponse | Exception) -> None:
        self._tickets.pop(index, None)
        self._running -= 1
        if isinstance(result, Exception):
            self._end(result)
        elif not self._over:
            self._answers[index] = result
            if not self._filling:
                self._fill()

    def _expire(self) -> None:
        limit = self._server.predict_limits.timeout_s
        self._end(DeadlineExceeded(f"the batch took longer than {limit:g} s (--inference-timeout-s)"))

    def _end(self, error: Exception | None) -> None:
        """The first end counts; parts that still wait give their places back."""
        if self._over:
            return
        self._over, self._call.on_abandon = True, None
        if self._timer is not None:
            self._timer.cancel()
        for ticket in list(self._tickets.values()):
            ticket.cancel()
        if error is not None:
            self._answer(error_reply(self._error_body, error, self._call))
        elif self._elements() <= MANY:
            self._answer(self._reply())
        else:
            task = asyncio.get_running_loop().create_task(self._answer_later())
            _ENCODING.add(task)
            task.add_done_callback(_ENCODING.discard)

    def _elements(self) -> int:
        return sum(t.array.size for answer in self._answers if answer for t in answer.outputs.values())

    def _reply(self) -> Reply:
        answers = [answer for answer in self._answers if answer is not None]
        version = self._server.versions.label(self._served.name, self._served.version)
        seconds = perf_counter() - self._call.started
        try:
            return json_reply(document(self._parts, answers, batch=self._batch, version=version, seconds=seconds))
        except Exception as error:
            return error_reply(self._error_body, error, self._call)

    async def _answer_later(self) -> None:
        self._answer(await self._server.codecs.run(self._reply))

    def _answer(self, reply: Reply) -> None:
        self._server.observe(self._served, NAME, reply.status, perf_counter() - self._call.started)
        self._finish(reply)
