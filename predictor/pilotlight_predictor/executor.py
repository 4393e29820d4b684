"""What runs the requests of a loaded model version, as those see it who send them.

`ServedVersion` hands items to an Executor: a Scheduler over instances, or an Ensemble over other models.
"""

from collections.abc import Callable
from typing import Protocol

from pilotlight_predictor.waiting import Item


class Runs(Protocol):
    """Where an item may be sent."""

    def submit(self, item: Item) -> None: ...
    def cancel(self, item: Item) -> None: ...


class Held(Runs, Protocol):
    """An executor that stays open for its holder, even when its model is unloaded meanwhile."""

    def release(self) -> None: ...


class Executor(Runs, Protocol):
    def hold(self) -> Held: ...
    async def close(self) -> None: ...
    @property
    def pending(self) -> int: ...
    @property
    def problem(self) -> str:
        """Why the model cannot be relied upon, in one sentence; empty while it can."""

    @property
    def alive(self) -> bool: ...


class Ticket:
    """Held by whoever asked; `cancel` when the client has gone."""

    __slots__ = ("_cancel", "_item")

    def __init__(self, cancel: Callable[[Item], None], item: Item) -> None:
        self._cancel = cancel
        self._item = item

    def cancel(self) -> None:
        self._cancel(self._item)
