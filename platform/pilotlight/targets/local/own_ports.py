"""The port that each service has of its own: the one that it had, else the next that is free."""

import asyncio
from collections.abc import Callable
from typing import Final

from pilotlight.targets.local.chronicle import Chronicle
from pilotlight.targets.local.gateway_link import GatewayLink
from pilotlight.targets.local.service import ServiceRun
from pilotlight.targets.local.store.store import Store

TRIED: Final = 50
SPAN: Final = 10_000


class OwnPorts:
    """`first` is the lowest that may be taken; 0: services have none. `changed` hears of every port that is open."""

    def __init__(
        self, store: Store, link: GatewayLink, first: int, chronicle: Chronicle, changed: Callable[[], None]
    ) -> None:
        self._store, self._link, self._first = store, link, first
        self._chronicle, self._changed = chronicle, changed
        self._tasks: set[asyncio.Task[None]] = set()

    def remember(self, run: ServiceRun) -> None:
        """Before the first table: a port that it does not name the gateway would close."""
        if self._first:
            run.port = self._next(run)

    def open(self, run: ServiceRun) -> None:
        if self._first:
            task = asyncio.get_running_loop().create_task(self._open(run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _open(self, run: ServiceRun) -> None:
        for attempt in range(TRIED):
            port = self._next(run, attempt)
            if not await self._link.listen([f"127.0.0.1:{port}/http"]):
                run.port = port
                self._changed()
                return
            self._store.release_port(run.key, "http")
        message = f"no port from {self._first} on is free"
        self._chronicle.tell(run.key, f"Service/{run.key[1]}", "NoPort", message, "Warning")

    def _next(self, run: ServiceRun, attempt: int = 0) -> int:
        return self._store.port(run.key, "http", range(self._first + attempt, self._first + SPAN))
