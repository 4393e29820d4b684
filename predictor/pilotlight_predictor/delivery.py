"""Hands answers to those who asked: in order where the model promises that, its own failures told to the log alone."""

from collections import deque
from collections.abc import Sequence

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.batch import Shares
from pilotlight_predictor.errors import BackendFailed, Cancelled, PredictorError
from pilotlight_predictor.logs import log, new_request_id
from pilotlight_predictor.waiting import Item


class Delivery:
    """`ordered` answers leave in the order in which their requests came; an early one waits for those before it.

    Those who left wait for nobody: kept in line, they would hold their tensors for nothing.
    """

    def __init__(self, ordered: bool) -> None:
        self._order: deque[Item] | None = deque() if ordered else None
        self._early: dict[Item, Answer] = {}
        self._told: Exception | None = None

    def expect(self, item: Item) -> None:
        if self._order is not None:
            self._order.append(item)

    def answer(self, item: Item, answer: Answer) -> None:
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

    def answer_batch(self, batch: list[Item], answers: Sequence[Answer]) -> None:
        if not (isinstance(answers, Shares) and self._order is None and _answered_together(batch, answers)):
            for item, answer in zip(batch, answers, strict=True):
                self.answer(item, answer)
        self.end_batch()

    def end_batch(self) -> None:
        """The next failure is told in the log even if it looks like the last."""
        self._told = None

    def part(self, item: Item, answer: Answer, final: bool) -> None:
        """One of several answers; those never wait for other requests."""
        assert item.part is not None
        if isinstance(answer, Exception):
            answer = self._told_as(item, answer)
        try:
            item.part(answer, final)
        except Exception as error:
            tell_lost(item, error)

    def deliver(self, item: Item, answer: Answer) -> None:
        """At once, whoever else waits."""
        if isinstance(answer, Exception):
            answer = self._told_as(item, answer)
        try:
            item.answer(answer)
        except Exception as error:  # whoever asked must not cost its neighbours their answers
            tell_lost(item, error)

    def _told_as(self, item: Item, error: Exception) -> Exception:
        told = self._opaque(item, error) if _is_ours_to_hide(error) else error
        _let_frames_go(error)
        return told

    def _opaque(self, item: Item, error: Exception) -> BackendFailed:
        """The client learns that the model failed; the log learns why, once for a batch that failed as a whole."""
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        model, request_id = item.request.model, item.request.request_id or new_request_id()
        if cause is not self._told:
            message = f"model '{model}' failed"
            log("backend.failed", message, level="ERROR", error=cause, request_id=request_id, model=model)
        self._told = cause
        return BackendFailed(f"model '{model}' failed; the server's log has the reason", request_id)


def _answered_together(batch: list[Item], shares: Shares) -> bool:
    together = batch[0].together
    if together is None:
        return False
    for item in batch:
        if item.together is not together:
            return False
    return together.answer(batch, shares)


def tell_lost(item: Item, error: Exception) -> None:
    name, request_id = item.request.model, item.request.request_id
    message = f"an answer of '{name}' could not be handed over"
    log("answer.lost", message, level="ERROR", error=error, request_id=request_id, model=name)


def _let_frames_go(error: BaseException | None) -> None:
    """Nobody reads them after the log. Through them an error reaches the answers that it is among, and in that circle
    the tensors of its batch would stay until the next collection."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _is_ours_to_hide(error: Exception) -> bool:
    """Whatever the model raised; our own sentences for the client are meant to be read."""
    return isinstance(error, BackendFailed) or not isinstance(error, PredictorError)
