"""Who accepts from which socket, as the parent tells it: whoever is not ready lets go before one that is takes over.

A worker says when it has done what it was told. Without that, the one that said "not ready" for all could still accept
a connection after another had said on the same port that the server is ready.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, NamedTuple, Protocol

from pilotlight_predictor.workers.decisions import free, shares

PATIENCE_S: Final = 3.0  # a load may hold the interpreter, and so the loop that would accept or say anything

Tell = Callable[[int, list[int]], None]


class Order(NamedTuple):
    number: int
    told_s: float
    sockets: list[int]


class Share:
    """What one worker may accept from: what it did last, and what it was told since."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._numbers = count(1)
        self._done: list[int] = []
        self._open: deque[Order] = deque()
        self.last: list[int] | None = None  # what it was told

    def give(self, sockets: list[int], now_s: float) -> None:
        if sockets == self.last:
            return
        self.last = sockets
        order = Order(next(self._numbers), now_s, sockets)
        self._open.append(order)
        self._tell(order.number, sockets)

    def did(self, number: int) -> None:
        """It follows this order, and none before it."""
        while self._open and self._open[0].number <= number:
            self._done = self._open.popleft().sockets

    def held(self, now_s: float) -> set[int]:
        """None for one that is silent: it hears nothing, hence it does not accept either."""
        if self._open and now_s - self._open[0].told_s >= PATIENCE_S:
            return set()
        return {*self._done, *(socket for order in self._open for socket in order.sockets)}


class Sharer(Protocol):
    """A worker as its parent sees it: member.py."""

    share: Share
    ready: bool
    leaving: bool
    gone: bool


class Standing(NamedTuple):
    share: Share
    ready: bool


def standings(workers: Mapping[int, Sharer]) -> dict[int, Standing]:
    """One that leaves lets go of what it has where another is ready; else it takes what comes until it ends."""
    here = {number: worker for number, worker in workers.items() if not worker.gone}
    helped = any(worker.ready and not worker.leaving for worker in here.values())
    return {
        number: Standing(worker.share, worker.ready and not worker.leaving)
        for number, worker in here.items()
        if helped or not worker.leaving
    }


def share_out(sockets: int, workers: Mapping[int, Standing], now_s: float, *, wait: bool = True) -> bool:
    """Tells everybody what to accept from now; whether a part of it has to `wait` until somebody lets go."""
    ready = [number for number, worker in workers.items() if worker.ready]
    wanted = shares(sockets, ready, workers)
    held = {number: worker.share.held(now_s) for number, worker in workers.items() if wait and not worker.ready}
    given = {
        number: free(wanted[number], number, held, worker.share.last or () if worker.ready else ())
        for number, worker in workers.items()
    }
    for number, worker in workers.items():
        worker.share.give(given[number], now_s)
    return given != wanted
