"""Triton's generate extension: POST …/generate and …/generate_stream, JSON of the model's own names in and out.

`generate` gives the one answer of any model. `generate_stream` gives each answer as an event when it comes; the first
is awaited before the reply begins, so what refuses a request has a status of its own, and what fails later is an event.
"""

from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.dispatch import Dialect, Route, error_reply
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.generate import decode_generate, encode_generate
from pilotlight_predictor.routes.asking import ask
from pilotlight_predictor.routes.v2_answer import error_body
from pilotlight_predictor.routes.v2_infer import version_of
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.streaming import Reading

NAME: Final = "generate"
EVENTS: Final = "text/event-stream; charset=utf-8"


def generate(server: Server, call: Call) -> None:
    served, request = _asked(server, call)
    ask(server, call, served, request, DIALECT, lambda answer: Reply(200, [encode_generate(answer)]), as_text=True)


async def generate_stream(server: Server, call: Call) -> Reply:
    served, request = _asked(server, call)
    request.request_id = call.headers.get(HEADER_REQUEST_ID, "")
    return await Events(server, call, served, request).reply()


def _asked(server: Server, call: Call) -> tuple[ServedVersion, InferRequest]:
    version = version_of(call)
    served = server.find(call.params["model"], version)
    batched = served.config.max_batch_size > 0
    return served, decode_generate(served.name, version, call.body, served.inputs, batched)


class Events:
    """The body of a stream. It ends with the answers, when the client leaves, or when nobody reads it any more."""

    def __init__(self, server: Server, call: Call, served: ServedVersion, request: InferRequest) -> None:
        self._server, self._call, self._served = server, call, served
        self._answers = Reading(lambda asked, part: served.stream(asked, part, server.limits), request)
        self._first = b""
        self._counted = False

    async def reply(self) -> Reply:
        self._server.metrics.in_flight += 1
        self._call.on_abandon = self._answers.cancel
        try:
            result, final = await anext(self._answers)
            if isinstance(result, Exception):
                try:
                    raise result
                finally:
                    del result  # the error has this frame
            self._first = _event(result)
        except BaseException:
            self._answers.cancel()
            self._call.on_abandon = None
            self._server.metrics.in_flight -= 1  # the dispatcher counts what is refused
            raise
        if final:
            self._end(200)
        return Reply(200, self, EVENTS, {"Cache-Control": "no-cache"})

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> bytes:
        told, self._first = self._first, b""
        while not told:
            result, final = await anext(self._answers)
            status = 200
            if isinstance(result, Exception):
                reply = error_reply(error_body, result, self._call)
                status = reply.status
                assert isinstance(reply.body, list)
                told = b"data: %b\n\n" % b"".join(map(bytes, reply.body))
            else:
                told = _event(result)
            if final:
                self._end(status)
        return told

    async def aclose(self) -> None:
        self._answers.cancel()
        self._end(499)

    def _end(self, status: int) -> None:
        """The first end counts."""
        if not self._counted:
            self._counted = True
            self._call.on_abandon = None
            self._server.observe(self._served, NAME, status, perf_counter() - self._call.started)


def _event(response: InferResponse) -> bytes:
    """Nothing for an end without an answer."""
    return b"data: %b\n\n" % encode_generate(response) if response.outputs or response.parameters else b""


DIALECT = Dialect(
    NAME,
    (
        Route("POST", "/v2/models/{model}/generate", generate, Action.INFER, hot=True),
        Route("POST", "/v2/models/{model}/versions/{version}/generate", generate, Action.INFER, hot=True),
        Route("POST", "/v2/models/{model}/generate_stream", generate_stream, Action.INFER),
        Route("POST", "/v2/models/{model}/versions/{version}/generate_stream", generate_stream, Action.INFER),
    ),
    error_body,
)
