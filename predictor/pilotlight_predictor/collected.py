"""Answers in parts for whoever waits for them in a thread: a warm-up, or a model that answers once, but later."""

from threading import Event
from typing import Final

from pilotlight_predictor.backends.base import Answer, DecoupledInstance
from pilotlight_predictor.errors import LoadFailed
from pilotlight_predictor.inference import InferRequest

ALONE_S: Final = 30.0  # for the first answer to a warm-up


class Collected:
    """An `Asked` whose answers are kept."""

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


def run_alone(instance: DecoupledInstance, request: InferRequest) -> Answer:
    """A warm-up, in the thread that loads: the first answer, after which no other is wanted."""
    asked = Collected(request)
    instance.begin([asked])
    came = asked.answered.wait(ALONE_S)
    request.cancelled = True
    if not came:
        return LoadFailed(f"no answer within {ALONE_S:g} s")
    return asked.answers[0] if asked.answers else {}
