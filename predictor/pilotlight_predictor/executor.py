"""What runs the requests of a loaded model version, as those see it who send them.

`ServedVersion` hands items to an Executor: a Scheduler over instances, or an Ensemble over other models.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from pilotlight_predictor.inference import InferRequest, Outputs
from pilotlight_predictor.waiting import Item

Now = Callable[[InferRequest, int], Outputs | Exception]  # the request and its rows


class Runs(Protocol):
    """Where an item may be sent."""

    def submit(self, item: Item) -> None: ...
    def cancel(self, item: Item) -> None: ...
    def pause(self, item: Item, paused: bool) -> None:
        """Holds the further answers of a decoupled model back for a while."""


class Held(Runs, Protocol):
    """An executor that stays open for its holder, even when its model is unloaded meanwhile."""

    def release(self) -> None: ...


class Executor(Runs, Protocol):
    def hold(self) -> Held: ...
    def now(self) -> Now | None:
        """What answers a request before anything else happens; None where it has to wait for something."""

    async def close(self) -> None: ...
    @property
    def pending(self) -> int: ...
    @property
    def problem(self) -> str:
        """Why the model cannot be relied upon, in one sentence; empty while it can."""

    @property
    def alive(self) -> bool: ...


class Ticket(msgspec.Struct, eq=False):
    """Held by whoever asked; `cancel` when the client has gone, `pause` while it reads more slowly than it is told."""

    runs: Runs
    item: Item

    def cancel(self) -> None:
        self.runs.cancel(self.item)

    def pause(self) -> None:
        self.runs.pause(self.item, True)

    def resume(self) -> None:
        self.runs.pause(self.item, False)
