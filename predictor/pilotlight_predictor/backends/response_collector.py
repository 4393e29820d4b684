"""Responses of a decoupled instance collected for a blocking thread: a warm-up, or a model that responds later."""

from threading import Event
from typing import Final

from pilotlight_predictor.backends.base import Answer, DecoupledInstance
from pilotlight_predictor.core.requests import InferRequest
from pilotlight_predictor.errors import LoadFailed

FIRST_ANSWER_TIMEOUT_S: Final = 120.0  # of a warm-up: a language model on a few busy cores takes a minute


class ResponseCollector:
    """A DecoupledRequest that stores its answers; `answered` and `ended` can be waited for by another thread."""

    full = False

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self.answers: list[Answer] = []
        self.answered, self.ended = Event(), Event()

    @property
    def cancelled(self) -> bool:
        return self.request.cancelled

    def send(self, answer: Answer, final: bool | None = None) -> None:
        if not self.ended.is_set():
            self.answers.append(answer)
        self.answered.set()
        if isinstance(answer, Exception) if final is None else final:
            self.ended.set()

    def complete(self) -> None:
        self.ended.set()
        self.answered.set()


def run_warmup(instance: DecoupledInstance, request: InferRequest) -> Answer:
    """Run one warm-up request in the loading thread; return the first response and cancel the rest."""
    collector = ResponseCollector(request)
    instance.begin([collector])
    responded = collector.answered.wait(FIRST_ANSWER_TIMEOUT_S)
    request.cancelled = True
    if not responded:
        return LoadFailed(f"no response within {FIRST_ANSWER_TIMEOUT_S:g} s: it hangs, or is too slow on this machine")
    return collector.answers[0] if collector.answers else {}
