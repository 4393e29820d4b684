"""Many who asked one model in plain V2 JSON, answered a batch at a time: what v2_infer.py does for one, once for all.

Requests in a known form (protocol/v2_forms.py) wait for the model as any others do. Those that were computed together
have their outputs written by one call and cut at the ends of rows; where a batch has others in it, or something in it
that is not written so, each is answered by itself (v2_answer.py).
"""

from time import perf_counter

from pilotlight.contract import HEADER_REQUEST_ID
from pilotlight_predictor.batch import Shares
from pilotlight_predictor.calls import Call, Reply
from pilotlight_predictor.delivery import tell_lost
from pilotlight_predictor.inference import InferRequest, Outputs
from pilotlight_predictor.protocol.v2_response import encode_rows, with_id
from pilotlight_predictor.routes.v2_answer import MAX_ID, answer, packed_as_asked
from pilotlight_predictor.served import ServedVersion
from pilotlight_predictor.server import Server
from pilotlight_predictor.waiting import Item


class InferTogether:
    """Those who asked one version for the same outputs."""

    __slots__ = ("_cancel", "_like", "_metrics", "_served", "_server", "_submit")

    def __init__(self, server: Server, served: ServedVersion, like: InferRequest) -> None:
        self._served = served
        self._server, self._metrics = server, server.metrics
        self._like = like
        self._submit, self._cancel = served.executor.submit, served.executor.cancel

    def ask(self, call: Call, request: InferRequest) -> None:
        """Raises at once what refuses the request."""
        rows, signature = request.form.fit
        request.request_id = call.headers.get(HEADER_REQUEST_ID) or request.id[:MAX_ID]
        item = Item(request, None, rows, signature, asker=call, together=self)
        self._submit(item)
        self._metrics.in_flight += 1
        call.on_abandon = item.leave

    def answer(self, batch: list[Item], shares: Shares) -> bool:
        bodies = self._bodies(shares)
        if bodies is None:
            return False
        self._metrics.in_flight -= len(batch)
        histogram = self._metrics.request(self._served.name, self._served.version, "v2", 200)
        now = perf_counter()
        histogram.observe_all([now - item.asker.started for item in batch])
        for item, body in zip(batch, bodies, strict=True):
            call: Call = item.asker
            call.on_abandon = None
            if item.request.id:
                body = with_id(body, item.request.id)
            try:
                accept = call.headers.get("accept-encoding")
                call.finish(Reply(200, [body]) if not accept else packed_as_asked(accept, None, [body]))
            except Exception as error:  # whoever asked must not cost its neighbours their answers
                tell_lost(item, error)
        return True

    def _bodies(self, shares: Shares) -> list[bytes] | None:
        """None also where an answer cannot be written: then each learns why for itself."""
        try:
            response = self._served.response(self._like, shares.outputs)
            return None if isinstance(response, Exception) else encode_rows(response, shares.rows)
        except Exception:
            return None

    def answer_one(self, item: Item, result: Outputs | Exception) -> None:
        call, request = item.asker, item.request
        answer(self._server, call, self._served, request, call.finish, self._served.response(request, result))

    def leave(self, item: Item) -> None:
        self._cancel(item)


def together_of(server: Server, served: ServedVersion, request: InferRequest) -> InferTogether | None:
    """None for a request that has to be looked at by itself."""
    form = request.form
    if form is None or served.sampler is not None:
        return None
    found: InferTogether | None = form.together
    return found if found is not None or form.fit is None else _first(server, served, request)


def _first(server: Server, served: ServedVersion, request: InferRequest) -> InferTogether | None:
    """Forms that ask for all outputs have one in common."""
    form, forms = request.form, served.forms
    if not served.goes_straight(server.limits) or any(out.binary or out.classification for out in form.outputs):
        return None
    form.together = (not form.outputs and forms.together) or InferTogether(server, served, _like(request))
    if not form.outputs:
        forms.together = form.together
    found: InferTogether = form.together
    return found


def _like(request: InferRequest) -> InferRequest:
    """What all requests of a form have in common."""
    return InferRequest(request.model, {}, request.version, outputs=request.outputs)
