"""From what is ready to what the gateway knows: one table at a time, and the farewell of replicas that it lacks.

A replica that shall end is first left out of the table. Only when the gateway has confirmed that no request can reach
it any more is it told to end; what it still has in flight it finishes.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from pilotlight.gateway.table import Route, Table
from pilotlight.targets.local.gateway_link import GatewayLink
from pilotlight.targets.local.rounds import Survived

AGAIN_S: Final = 1.0  # after a round that failed


class Publisher:
    """`routes` is asked anew for each table; `farewell` hears of each replica that nobody can reach any more.

    `told` sees every table just before the gateway does: routers that are components learn of it in their own way.
    """

    def __init__(
        self,
        link: GatewayLink,
        routes: Callable[[], Iterable[Route]],
        farewell: Callable[[str], None],
        told: Callable[[Iterable[Route]], None] = lambda routes: None,
    ) -> None:
        self.link = link
        self.generation = 0
        self.retiring: set[str] = set()
        self._routes = routes
        self._farewell = farewell
        self._told = told
        self._published: tuple[Route, ...] | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())

    def changed(self) -> None:
        """Something may have changed: a table is made once the present work of the loop is done."""
        self._changed.set()

    def retire(self, replica: str) -> None:
        if replica not in self.retiring:
            self.retiring.add(replica)
            self._changed.set()

    def shares(self, key: tuple[str, str]) -> dict[str, int] | None:
        """Who gets which share of a service by the table that the gateway has confirmed; None: it has none of it."""
        found = next((route for route in self._published or () if (route.namespace, route.name) == key), None)
        return {backend.revision: backend.weight for backend in found.backends} if found else None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._round():
                self._changed.set()
                await asyncio.sleep(AGAIN_S)

    async def _round(self) -> bool:
        """Whether everything was done."""
        leaving = set(self.retiring)
        with Survived("a table for the gateway"):
            await self._publish(tuple(self._routes()))
            for replica in leaving:
                with Survived(f"the farewell of {replica}"):
                    self._farewell(replica)
                    self.retiring.discard(replica)
            return self.retiring.isdisjoint(leaving)
        return False

    async def _publish(self, routes: tuple[Route, ...]) -> None:
        if routes != self._published:
            self.generation += 1
            self._told(routes)
            await self.link.publish(Table(self.generation, routes))
            self._published = routes
