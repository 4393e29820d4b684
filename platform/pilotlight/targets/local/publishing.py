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
        self._awaiting: list[asyncio.Future[None]] = []
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

    async def confirmed(self) -> None:
        """Until the gateway has confirmed a table that was made after this call, or one that said the same."""
        awaited = asyncio.get_running_loop().create_future()
        self._awaiting.append(awaited)
        self._changed.set()
        await awaited

    def shares(self, key: tuple[str, str]) -> dict[str, int] | None:
        """Who gets which share of a service by the table that the gateway has confirmed; None: it has none of it."""
        found = self._route(key)
        return {backend.revision: backend.weight for backend in found.backends} if found else None

    def ports(self, key: tuple[str, str]) -> tuple[int, int]:
        """For HTTP and for gRPC, that lead to a service by the table that the gateway has confirmed; 0: none does."""
        found = self._route(key)
        return (found.port, found.grpc_port) if found else (0, 0)

    def _route(self, key: tuple[str, str]) -> Route | None:
        return next((route for route in self._published or () if (route.namespace, route.name) == key), None)

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
        leaving, awaiting = set(self.retiring), tuple(self._awaiting)
        with Survived("a table for the gateway"):
            await self._publish(tuple(self._routes()))
            self._release(awaiting)
            for replica in leaving:
                with Survived(f"the farewell of {replica}"):
                    self._farewell(replica)
                    self.retiring.discard(replica)
            return self.retiring.isdisjoint(leaving)
        return False

    def _release(self, awaiting: Iterable["asyncio.Future[None]"]) -> None:
        for each in awaiting:
            self._awaiting.remove(each)
            if not each.done():
                each.set_result(None)

    async def _publish(self, routes: tuple[Route, ...]) -> None:
        if routes != self._published:
            self.generation += 1
            self._told(routes)
            await self.link.publish(Table(self.generation, routes))
            self._published = routes
