"""Responses to V2 inferences: encode, compress, count and send, one by one or a whole batch at once.

If a batch consists of requests of known templates (request_templates.py), its outputs are encoded by one call and split
by rows; otherwise each request is responded to by itself.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final

from pilotlight.contract import HEADER_INFERENCE_LENGTH, HEADER_REQUEST_ID
from pilotlight.wire.http1 import Buffer
from pilotlight_predictor.core.batch import SplitOutputs
from pilotlight_predictor.core.compression import choose_encoding, compress
from pilotlight_predictor.core.requests import InferRequest, InferResponse, Outputs
from pilotlight_predictor.errors import PredictorError
from pilotlight_predictor.frontends.http.messages import JSON, HttpRequest, HttpResponse, json_response, valid_text
from pilotlight_predictor.frontends.http.router import error_response
from pilotlight_predictor.frontends.tasks_and_timeouts import spawn
from pilotlight_predictor.models.model_version import ModelVersion
from pilotlight_predictor.protocols.run_inference import send_encoded
from pilotlight_predictor.protocols.v2.response_codec import encode_response, encode_rows, is_long, with_id
from pilotlight_predictor.scheduling.queue import QueuedRequest
from pilotlight_predictor.scheduling.response_delivery import log_undelivered
from pilotlight_predictor.server.handler_context import Server

BINARY: Final = "application/octet-stream"
LENGTH: Final = HEADER_INFERENCE_LENGTH.title()  # for clients that compare names case-sensitively
MAX_ID: Final = 128  # characters of an id in the log
Finish = Callable[[HttpResponse], None]


def error_body(error: PredictorError) -> HttpResponse:
    return json_response({"error": valid_text(error)}, error.status)


def respond(
    server: Server,
    request: HttpRequest,
    served: ModelVersion,
    infer_request: InferRequest,
    finish: Finish,
    result: InferResponse | Exception,
) -> None:
    """Send the response, now or after encoding a long one in a thread."""
    request.on_abandon = None
    if isinstance(result, InferResponse) and is_long(infer_request, result, "accept-encoding" in request.headers):
        send = partial(_send, server, request, served, finish)
        spawn(send_encoded(server, result, partial(_make_response, request, infer_request), send))
        return
    response = _make_response(request, infer_request, result)
    server.observe(served, "v2", response.status, perf_counter() - request.started)  # as _send, without a call
    finish(response)


def _send(server: Server, request: HttpRequest, served: ModelVersion, finish: Finish, response: HttpResponse) -> None:
    server.observe(served, "v2", response.status, perf_counter() - request.started)
    finish(response)


def _make_response(
    request: HttpRequest, infer_request: InferRequest, result: InferResponse | Exception
) -> HttpResponse:
    if isinstance(result, Exception):
        return error_response(error_body, result, request)
    try:
        if request.as_triton and result.shared_outputs:  # Triton repeats no parameters of a region
            places = result.shared_outputs.items()
            result.shared_outputs = {name: place._replace(region="") for name, place in places}
        header_length, pieces = encode_response(infer_request, result)
        accept = request.headers.get("accept-encoding")
        if header_length is None and not accept:
            return HttpResponse(200, pieces)
        return binary_or_compressed(accept or "", header_length, pieces)
    except Exception as error:  # such as output names that are not valid Unicode
        return error_response(error_body, error, request)


def binary_or_compressed(accept: str, header_length: int | None, pieces: list[Buffer]) -> HttpResponse:
    """Return a response with binary tensors or compression, and the headers that announce them."""
    headers = {} if header_length is None else {LENGTH: str(header_length)}
    encoding = choose_encoding(accept) if accept else None
    if encoding and (compressed := compress(pieces, encoding)) is not None:
        pieces = compressed
        headers |= {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}
    return HttpResponse(200, pieces, JSON if header_length is None else BINARY, headers or None)


class V2BatchReply:
    """Responder for requests to one model version with the same outputs."""

    __slots__ = ("_cancel", "_common", "_metrics", "_served", "_server", "_submit")

    def __init__(self, server: Server, served: ModelVersion, common: InferRequest) -> None:
        self._served = served
        self._server, self._metrics = server, server.metrics
        self._common = common
        self._submit, self._cancel = served.executor.submit, served.executor.cancel

    def submit(self, request: HttpRequest, infer_request: InferRequest) -> None:
        """Queue a request. Raise if it is rejected."""
        rows, signature = infer_request.template.fit
        infer_request.request_id = request.headers.get(HEADER_REQUEST_ID) or infer_request.id[:MAX_ID]
        item = QueuedRequest(infer_request, None, rows, signature, origin=request, batch_reply=self)
        self._submit(item)
        self._metrics.in_flight += 1
        request.on_abandon = item.cancel

    def answer(self, batch: list[QueuedRequest], split: SplitOutputs) -> bool:
        """Respond to a whole batch; False if it must be done one by one, which also reports errors per request."""
        try:
            response = self._served.response(self._common, split.outputs)
            bodies = None if isinstance(response, Exception) else encode_rows(response, split.rows)
        except Exception:
            return False
        if bodies is None:
            return False
        self._metrics.in_flight -= len(batch)
        histogram = self._metrics.request(self._served.name, self._served.version, "v2", 200)
        now = perf_counter()
        histogram.observe_all([now - item.origin.started for item in batch])
        for item, body in zip(batch, bodies, strict=True):
            request: HttpRequest = item.origin
            request.on_abandon = None
            if item.request.id:
                body = with_id(body, item.request.id)
            try:
                accept = request.headers.get("accept-encoding")
                request.finish(HttpResponse(200, [body]) if not accept else binary_or_compressed(accept, None, [body]))
            except Exception as error:  # one client must not cost the others their responses
                log_undelivered(item, error)
        return True

    def answer_one(self, item: QueuedRequest, result: Outputs | Exception) -> None:
        request, infer_request = item.origin, item.request
        response = self._served.response(infer_request, result)
        respond(self._server, request, self._served, infer_request, request.finish, response)

    def cancel(self, item: QueuedRequest) -> None:
        self._cancel(item)


def batch_reply_for(server: Server, served: ModelVersion, infer_request: InferRequest) -> V2BatchReply | None:
    """Return the responder for a request; None if it must be handled by itself."""
    template = infer_request.template
    if template is None or served.sampler is not None:
        return None
    batch_reply: V2BatchReply | None = template.batch_reply
    if batch_reply is None and template.fit is not None:
        return _new_batch_reply(server, served, infer_request)
    return batch_reply


def _new_batch_reply(server: Server, served: ModelVersion, infer_request: InferRequest) -> V2BatchReply | None:
    """Create a responder; templates that request all outputs share one."""
    template, templates = infer_request.template, served.templates
    if not served.bypasses_checks(server.limits) or any(out.binary or out.classification for out in template.outputs):
        return None
    batch_reply: V2BatchReply | None = None if template.outputs else templates.batch_reply
    if batch_reply is None:
        common = InferRequest(infer_request.model, {}, infer_request.version, outputs=infer_request.outputs)
        batch_reply = V2BatchReply(server, served, common)
    template.batch_reply = batch_reply
    if not template.outputs:
        templates.batch_reply = batch_reply
    return batch_reply
