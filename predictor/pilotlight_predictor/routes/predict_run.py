"""Inference of one /predict request: a batch larger than the model's runs as several parts, a few at a time."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.calls import HttpRequest, HttpResponse, json_response
from pilotlight_predictor.dispatch import ErrorBody, error_response
from pilotlight_predictor.errors import BadRequest, Cancelled, DeadlineExceeded
from pilotlight_predictor.executor import Ticket
from pilotlight_predictor.inference import InferResponse
from pilotlight_predictor.protocol.predict_request import InvalidInput, PredictPart
from pilotlight_predictor.protocol.predict_response import document
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server

NAME: Final = "predict"
MAX_SUBMITTED: Final = 8  # parts of one request in the model's queue, so that other requests get their turn
MANY: Final = 1 << 16  # elements from which the response is encoded in a thread
_ENCODING: set[asyncio.Task[None]] = set()  # the loop holds tasks only weakly


class PredictInference:
    """Runs the parts; `finish` is called exactly once, on the event loop, with the response."""

    def __init__(
        self,
        server: Server,
        request: HttpRequest,
        served: ModelVersion,
        parts: Sequence[PredictPart],
        error_body: ErrorBody,
        batch: bool,
    ) -> None:
        self._server, self._request, self._served = server, request, served
        self._parts, self._error_body, self._batch = parts, error_body, batch
        self._responses: list[InferResponse | None] = [None] * len(parts)
        self._tickets: dict[int, Ticket] = {}
        self._next = self._running = 0
        self._filling = self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, finish: Callable[[HttpResponse], None]) -> None:
        self._finish = finish
        self._server.metrics.in_flight += 1
        self._request.on_abandon = lambda: self._end(Cancelled("the client has gone"))
        timeout_s = self._server.predict_limits.timeout_s
        if timeout_s and len(self._parts) > 1:  # a single part has its own time limit
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)
        self._fill()

    def _fill(self) -> None:
        """Submit parts up to the limit. Responses may arrive within `_submit`: those must not re-enter this."""
        self._filling = True
        while self._next < len(self._parts) and self._running < MAX_SUBMITTED and not self._ended:
            self._submit(self._next)
        self._filling = False
        if self._next == len(self._parts) and not self._running:
            self._end(None)

    def _submit(self, index: int) -> None:
        self._next, self._running = self._next + 1, self._running + 1
        infer_request = self._parts[index].request
        infer_request.request_id = self._request.headers.get(HEADER_REQUEST_ID, "")
        try:
            ticket = self._served.infer(infer_request, partial(self._done, index), self._server.predict_limits)
        except BadRequest as error:
            self._end(InvalidInput(str(error)))
        except Exception as error:
            self._end(error)
        else:
            if self._responses[index] is None:
                self._tickets[index] = ticket

    def _done(self, index: int, result: InferResponse | Exception) -> None:
        self._tickets.pop(index, None)
        self._running -= 1
        if isinstance(result, Exception):
            self._end(result)
        elif not self._ended:
            self._responses[index] = result
            if not self._filling:
                self._fill()

    def _expire(self) -> None:
        limit = self._server.predict_limits.timeout_s
        self._end(DeadlineExceeded(f"the batch took longer than {limit:g} s (--inference-timeout-s)"))

    def _end(self, error: Exception | None) -> None:
        """End once: cancel queued parts, and send the response or the error."""
        if self._ended:
            return
        self._ended, self._request.on_abandon = True, None
        if self._timer is not None:
            self._timer.cancel()
        for ticket in list(self._tickets.values()):
            ticket.cancel()
        if error is not None:
            self._send(error_response(self._error_body, error, self._request))
        elif sum(t.array.size for response in self._responses if response for t in response.outputs.values()) <= MANY:
            self._send(self._make_response())
        else:
            task = asyncio.get_running_loop().create_task(self._send_encoded())
            _ENCODING.add(task)
            task.add_done_callback(_ENCODING.discard)

    def _make_response(self) -> HttpResponse:
        responses = [response for response in self._responses if response is not None]
        version = self._server.versions.label(self._served.name, self._served.version)
        seconds = perf_counter() - self._request.started
        try:
            return json_response(document(self._parts, responses, batch=self._batch, version=version, seconds=seconds))
        except Exception as error:
            return error_response(self._error_body, error, self._request)

    async def _send_encoded(self) -> None:
        self._send(await self._server.codecs.run(self._make_response))

    def _send(self, response: HttpResponse) -> None:
        self._server.observe(self._served, NAME, response.status, perf_counter() - self._request.started)
        self._finish(response)
