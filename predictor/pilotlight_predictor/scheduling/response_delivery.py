"""Delivery of answers to clients: in request order where configured. Backend errors go to the log, not to clients."""

from collections import deque
from collections.abc import Sequence

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.core.batch import SplitOutputs
from pilotlight_predictor.errors import BackendFailed, Cancelled, PredictorError
from pilotlight_predictor.observability.logs import log, new_request_id
from pilotlight_predictor.scheduling.queue import QueuedRequest


class Delivery:
    """Delivery of answers, if `ordered` in the order of the requests (preserve_ordering): an early one waits.

    Cancelled requests leave the order at once, so that they do not hold their tensors.
    """

    def __init__(self, ordered: bool) -> None:
        self._order: deque[QueuedRequest] | None = deque() if ordered else None
        self._early: dict[QueuedRequest, Answer] = {}
        self._last_logged: Exception | None = None

    def expect(self, item: QueuedRequest) -> None:
        if self._order is not None:
            self._order.append(item)

    def answer(self, item: QueuedRequest, answer: Answer) -> None:
        if self._order is None:
            self.deliver(item, answer)
            return
        if isinstance(answer, Cancelled):
            self._order.remove(item)
            self.deliver(item, answer)
        else:
            self._early[item] = answer
        while self._order and self._order[0] in self._early:
            first = self._order.popleft()
            self.deliver(first, self._early.pop(first))

    def answer_batch(self, batch: list[QueuedRequest], answers: Sequence[Answer]) -> None:
        if not (isinstance(answers, SplitOutputs) and self._order is None and _reply_to_batch(batch, answers)):
            for item, answer in zip(batch, answers, strict=True):
                self.answer(item, answer)
        self.end_batch()

    def end_batch(self) -> None:
        """Log the next failure even if it equals the last one."""
        self._last_logged = None

    def part(self, item: QueuedRequest, answer: Answer, final: bool) -> None:
        """Deliver one of several answers of a decoupled model; these are not ordered between requests."""
        assert item.part is not None
        if isinstance(answer, Exception):
            answer = self._client_error(item, answer)
        try:
            item.part(answer, final)
        except Exception as error:
            log_undelivered(item, error)

    def deliver(self, item: QueuedRequest, answer: Answer) -> None:
        """Deliver now, without regard to order."""
        if isinstance(answer, Exception):
            answer = self._client_error(item, answer)
        try:
            item.answer(answer)
        except Exception as error:  # one client's failure must not cost the rest of the batch its answers
            log_undelivered(item, error)

    def _client_error(self, item: QueuedRequest, error: Exception) -> Exception:
        # The client's sentences of PredictorError are meant to be read; whatever the model raised is not.
        internal = isinstance(error, BackendFailed) or not isinstance(error, PredictorError)
        message = self._opaque(item, error) if internal else error
        _drop_tracebacks(error)
        return message

    def _opaque(self, item: QueuedRequest, error: Exception) -> BackendFailed:
        """Return the client's error, without the cause. Logs the cause once for a batch that failed as a whole."""
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        model, request_id = item.request.model, item.request.request_id or new_request_id()
        if cause is not self._last_logged:
            message = f"model '{model}' failed"
            log("backend.failed", message, level="ERROR", error=cause, request_id=request_id, model=model)
        self._last_logged = cause
        return BackendFailed(f"model '{model}' failed; see the server's log", request_id)


def _reply_to_batch(batch: list[QueuedRequest], shares: SplitOutputs) -> bool:
    together = batch[0].batch_reply
    if together is None:
        return False
    for item in batch:
        if item.batch_reply is not together:
            return False
    return together.answer(batch, shares)


def log_undelivered(item: QueuedRequest, error: Exception) -> None:
    name, request_id = item.request.model, item.request.request_id
    message = f"a response of '{name}' could not be delivered"
    log("answer.lost", message, level="ERROR", error=error, request_id=request_id, model=name)


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop tracebacks after logging: through their frames the error refers to its own list of answers, a cycle that
    would hold the batch's tensors until the next garbage collection."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
