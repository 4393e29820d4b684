"""Interfaces of scheduling: ModelVersion submits requests to an Executor, and gets a Ticket for each.

Executors are the Scheduler and the SequenceScheduler, over instances, and the Ensemble, over other models.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from pilotlight_predictor.core.requests import InferRequest, Outputs
from pilotlight_predictor.scheduling.queue import QueuedRequest

InlineCall = Callable[[InferRequest, int], Outputs | Exception]  # the request and its rows


class RequestRunner(Protocol):
    """Receiver of queued requests."""

    def submit(self, item: QueuedRequest) -> None: ...
    def cancel(self, item: QueuedRequest) -> None: ...
    def pause(self, item: QueuedRequest, paused: bool) -> None:
        """Hold back, or resume, further responses of a decoupled model; other models respond once."""
        return


class HeldExecutor(RequestRunner, Protocol):
    """An executor that stays open until released, even if its model is unloaded."""

    def release(self) -> None: ...


class Executor(RequestRunner, Protocol):
    """Executor of a version; the defaults are those of one that has no instances and responds once."""

    def hold(self) -> HeldExecutor: ...
    def inline_call(self) -> InlineCall | None:
        """Return a function that runs a request synchronously; None if the request has to be queued."""
        return None

    def give_up_hung(self, ticks: int) -> str:
        """Give up instances that run the same batch as at the last `ticks` calls; return a sentence about it."""
        return ""

    async def close(self) -> None: ...
    @property
    def pending(self) -> int:
        """Number of queued requests."""

    @property
    def problem(self) -> str:
        """Why the model is not healthy, in one sentence; empty if it is."""

    @property
    def alive(self) -> bool:
        return not self.problem


class Ticket(msgspec.Struct, eq=False):
    """Handle of a submitted request: `cancel` when the client disconnects, `pause` while it reads too slowly."""

    runner: RequestRunner
    item: QueuedRequest

    def cancel(self) -> None:
        self.runner.cancel(self.item)

    def pause(self) -> None:
        self.runner.pause(self.item, True)

    def resume(self) -> None:
        self.runner.pause(self.item, False)
