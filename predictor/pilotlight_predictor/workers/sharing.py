"""Hand-over of listening sockets between workers: one that is not ready releases a socket before a ready one gets it.

Workers confirm each order. Without that, the worker that responds "not ready" for all could still accept a connection
after another one has reported the server ready on the same port.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, NamedTuple, Protocol

from pilotlight_predictor.workers.decisions import assign_sockets, available_sockets

PATIENCE_S: Final = 3.0  # a load may hold the GIL, and so block the event loop

SendOrder = Callable[[int, list[int]], None]


class Order(NamedTuple):
    number: int
    sent_s: float
    sockets: list[int]


class SocketShare:
    """Sockets of one worker: those of the last confirmed order, and orders sent since."""

    def __init__(self, send: SendOrder) -> None:
        self._send = send
        self._numbers = count(1)
        self._done: list[int] = []
        self._open: deque[Order] = deque()
        self.last: list[int] | None = None  # sockets of the last order

    def assign(self, sockets: list[int], now_s: float) -> None:
        if sockets == self.last:
            return
        self.last = sockets
        order = Order(next(self._numbers), now_s, sockets)
        self._open.append(order)
        self._send(order.number, sockets)

    def confirm(self, number: int) -> None:
        """Record that the worker follows this order."""
        while self._open and self._open[0].number <= number:
            self._done = self._open.popleft().sockets

    def held(self, now_s: float) -> set[int]:
        """Return sockets that the worker may accept from; none if it does not confirm: a blocked loop cannot accept."""
        if self._open and now_s - self._open[0].sent_s >= PATIENCE_S:
            return set()
        return {*self._done, *(socket for order in self._open for socket in order.sockets)}


class SharingWorker(Protocol):
    """Worker as the distribution needs it; implemented by WorkerHandle."""

    share: SocketShare
    ready: bool
    leaving: bool
    gone: bool


class ShareState(NamedTuple):
    share: SocketShare
    ready: bool


def share_states(workers: Mapping[int, SharingWorker]) -> dict[int, ShareState]:
    """Return the workers that take part; a leaving one keeps accepting until its exit unless another is ready."""
    present = {number: worker for number, worker in workers.items() if not worker.gone}
    replaced = any(worker.ready and not worker.leaving for worker in present.values())
    return {
        number: ShareState(worker.share, worker.ready and not worker.leaving)
        for number, worker in present.items()
        if replaced or not worker.leaving
    }


def distribute_sockets(sockets: int, workers: Mapping[int, ShareState], now_s: float, *, wait: bool = True) -> bool:
    """Send each worker its sockets; return whether some are withheld until another worker has released them."""
    ready = [number for number, worker in workers.items() if worker.ready]
    targets = assign_sockets(sockets, ready, workers)
    held = {number: worker.share.held(now_s) for number, worker in workers.items() if wait and not worker.ready}
    assigned = {
        number: available_sockets(targets[number], number, held, worker.share.last or () if worker.ready else ())
        for number, worker in workers.items()
    }
    for number, worker in workers.items():
        worker.share.assign(assigned[number], now_s)
    return assigned != targets
