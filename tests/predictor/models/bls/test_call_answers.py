"""The answers to a call of one model by another, between the event loop and the thread that waits for them."""

import asyncio
from queue import SimpleQueue
from threading import Thread

from tests.eventually import eventually_async

from pilotlight_predictor.core.requests import InferResponse
from pilotlight_predictor.models.bls import CallResponses
from pilotlight_predictor.scheduling.streaming import MAX_UNREAD

Arrived = tuple[InferResponse | Exception, bool]


class Held:
    """A ticket that notes whether its request is held back."""

    paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


class TakenMeanwhile(SimpleQueue[Arrived]):
    """Between the look at how many have arrived and what the loop does about it, the caller takes them all."""

    answers: CallResponses

    def qsize(self) -> int:
        seen = super().qsize()
        if seen >= MAX_UNREAD:
            caller = Thread(target=lambda: [self.answers.next() for _ in range(seen)])
            caller.start()
            caller.join()
        return seen


def test_a_caller_that_has_taken_everything_is_sent_more() -> None:
    async def scene() -> None:
        answers, ticket = CallResponses(asyncio.get_running_loop(), None), Held()
        answers._queue = queue = TakenMeanwhile()
        queue.answers = answers
        answers.started(ticket)  # type: ignore[arg-type]
        for _ in range(MAX_UNREAD):
            answers.part(InferResponse("m", 1, {}), False)
        assert not answers.waiting
        await eventually_async(lambda: not ticket.paused)

    asyncio.run(scene())
