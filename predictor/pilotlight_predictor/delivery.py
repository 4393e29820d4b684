"""Hands answers to those who asked: in order where the model promises that, its own failures told to the log alone."""

from collections import deque

from pilotlight_predictor.backends.base import Answer
from pilotlight_predictor.errors import BackendFailed, Cancelled, PredictorError
from pilotlight_predictor.logs import log
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
            self._deliver(item, answer)
            return
        if isinstance(answer, Cancelled):
            self._order.remove(item)
            self._deliver(item, answer)
        else:
            self._early[item] = answer
        while self._order and self._order[0] in self._early:
            first = self._order.popleft()
            self._deliver(first, self._early.pop(first))

    def end_batch(self) -> None:
        """The next failure is told in the log even if it looks like the last."""
        self._told = None

    def _deliver(self, item: Item, answer: Answer) -> None:
        if isinstance(answer, Exception) and _is_ours_to_hide(answer):
            answer = self._opaque(item, answer)
        try:
            item.done(answer)
        except Exception as error:  # whoever asked must not cost its neighbours their answers
            name = item.request.model
            log(
                "answer.lost", f"an answer of '{name}' could not be handed over", level="ERROR", error=error, model=name
            )

    def _opaque(self, item: Item, error: Exception) -> BackendFailed:
        """The client learns that the model failed; the log learns why, once for a batch that failed as a whole."""
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if cause is not self._told:
            model = item.request.model
            log("backend.failed", f"model '{model}' failed", level="ERROR", error=cause, model=model)
        self._told = cause
        return BackendFailed(f"model '{item.request.model}' failed; the server's log has the reason")


def _is_ours_to_hide(error: Exception) -> bool:
    """Whatever the model raised; our own sentences for the client are meant to be read."""
    return isinstance(error, BackendFailed) or not isinstance(error, PredictorError)
