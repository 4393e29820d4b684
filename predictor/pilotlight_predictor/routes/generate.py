"""Triton's generate extension: POST …/generate and …/generate_stream, JSON with the model's tensor names.

`generate` returns a single response. `generate_stream` sends each response as a server-sent event; the first is awaited
before the headers are sent, so that a rejected request gets its own status; later errors are events.
"""

from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.access import Action
from pilotlight_predictor.calls import HttpRequest, HttpResponse
from pilotlight_predictor.dispatch import Route, ServingProtocol, error_response
from pilotlight_predictor.inference import InferRequest, InferResponse
from pilotlight_predictor.protocol.generate import decode_generate, encode_generate
from pilotlight_predictor.routes.asking import run_inference
from pilotlight_predictor.routes.v2_answer import error_body
from pilotlight_predictor.routes.v2_infer import version_of
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.streaming import ResponseReader

NAME: Final = "generate"
EVENTS: Final = "text/event-stream; charset=utf-8"


def generate(server: Server, request: HttpRequest) -> None:
    served, infer_request = _decode(server, request)

    def encode(response: InferResponse) -> HttpResponse:
        return HttpResponse(200, [encode_generate(response)])

    run_inference(server, request, served, infer_request, PROTOCOL, encode, as_text=True)


async def generate_stream(server: Server, request: HttpRequest) -> HttpResponse:
    served, infer_request = _decode(server, request)
    infer_request.request_id = request.headers.get(HEADER_REQUEST_ID, "")
    return await GenerateEvents(server, request, served, infer_request).respond()


def _decode(server: Server, request: HttpRequest) -> tuple[ModelVersion, InferRequest]:
    version = version_of(request)
    served = server.find(request.params["model"], version)
    batched = served.config.max_batch_size > 0
    return served, decode_generate(served.name, version, request.body, served.inputs, batched)


class GenerateEvents:
    """Body of a stream of events; ends with the last response or when the client disconnects."""

    def __init__(self, server: Server, request: HttpRequest, served: ModelVersion, infer_request: InferRequest) -> None:
        self._server, self._request, self._served = server, request, served
        self._responses = ResponseReader(
            lambda each, deliver: served.stream(each, deliver, server.limits), infer_request
        )
        self._first = b""
        self._counted = False

    async def respond(self) -> HttpResponse:
        self._server.metrics.in_flight += 1
        self._request.on_abandon = self._responses.cancel
        try:
            result, final = await anext(self._responses)
            if isinstance(result, Exception):
                try:
                    raise result
                finally:
                    del result  # the traceback refers to this frame
            self._first = _event(result)
        except BaseException:
            self._responses.cancel()
            self._request.on_abandon = None
            self._server.metrics.in_flight -= 1  # the dispatcher counts rejected requests
            raise
        if final:
            self._end(200)
        return HttpResponse(200, self, EVENTS, {"Cache-Control": "no-cache"})

    def __aiter__(self) -> "GenerateEvents":
        return self

    async def __anext__(self) -> bytes:
        event, self._first = self._first, b""
        while not event:
            result, final = await anext(self._responses)
            status = 200
            if isinstance(result, Exception):
                response = error_response(error_body, result, self._request)
                status = response.status
                assert isinstance(response.body, list)
                event = b"data: %b\n\n" % b"".join(map(bytes, response.body))
            else:
                event = _event(result)
            if final:
                self._end(status)
        return event

    async def aclose(self) -> None:
        self._responses.cancel()
        self._end(499)

    def _end(self, status: int) -> None:
        """Count the request once."""
        if not self._counted:
            self._counted = True
            self._request.on_abandon = None
            self._server.observe(self._served, NAME, status, perf_counter() - self._request.started)


def _event(response: InferResponse) -> bytes:
    """Return the event; empty for a final response without outputs."""
    return b"data: %b\n\n" % encode_generate(response) if response.outputs or response.parameters else b""


PROTOCOL = ServingProtocol(
    NAME,
    (
        Route("POST", "/v2/models/{model}/generate", generate, Action.INFER, hot=True),
        Route("POST", "/v2/models/{model}/versions/{version}/generate", generate, Action.INFER, hot=True),
        Route("POST", "/v2/models/{model}/generate_stream", generate_stream, Action.INFER),
        Route("POST", "/v2/models/{model}/versions/{version}/generate_stream", generate_stream, Action.INFER),
    ),
    error_body,
)
