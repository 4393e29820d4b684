"""Responses to a whole batch of V2 requests at once.

Requests of known templates (protocol/v2_forms.py) are queued as any others. If a batch consists of them, its outputs
are encoded by one call and split by rows; otherwise each request is responded to by itself (v2_answer.py).
"""

from time import perf_counter

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.batch import SplitOutputs
from pilotlight_predictor.calls import HttpRequest, HttpResponse
from pilotlight_predictor.delivery import log_undelivered
from pilotlight_predictor.inference import InferRequest, Outputs
from pilotlight_predictor.protocol.v2_response import encode_rows, with_id
from pilotlight_predictor.routes.v2_answer import MAX_ID, binary_or_compressed, respond
from pilotlight_predictor.served import ModelVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.waiting import QueuedRequest


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
        bodies = self._bodies(split)
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

    def _bodies(self, split: SplitOutputs) -> list[bytes] | None:
        """Return the bodies; None if they must be encoded one by one, which also reports errors per request."""
        try:
            response = self._served.response(self._common, split.outputs)
            return None if isinstance(response, Exception) else encode_rows(response, split.rows)
        except Exception:
            return None

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
