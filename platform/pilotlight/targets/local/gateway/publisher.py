"""Publisher of routing tables: sends ready replicas to the gateway, one table at a time, and retires others.

A replica to be retired is first left out of the table. It is drained only after the gateway has confirmed that it
routes nothing to it any more; requests in flight are finished.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from pilotlight.gateway.routing_table import Route, Table
from pilotlight.targets.local.delayed_queue import log_and_continue
from pilotlight.targets.local.gateway.gateway_link import GatewayLink

RETRY_S: Final = 1.0  # after a failed publication


class Publisher:
    """`routes` is called for each table, `on_unrouted` for each retired replica that no table names any more.

    `on_publish` gets every table just before the gateway does, for routers that are components of a service.
    """

    def __init__(
        self,
        link: GatewayLink,
        routes: Callable[[], Iterable[Route]],
        on_unrouted: Callable[[str], None],
        on_publish: Callable[[Iterable[Route]], None] = lambda routes: None,
        allowed_hosts: tuple[str, ...] = (),
        console: str = "",
    ) -> None:
        self.link = link
        self.generation = 0
        self.retiring: set[str] = set()
        self._routes, self._on_unrouted, self._on_publish = routes, on_unrouted, on_publish
        self._allowed_hosts, self._console = allowed_hosts, console
        self._published: tuple[Route, ...] | None = None
        self._changed = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._loop())

    def changed(self) -> None:
        """Schedule a new table, built after the event loop's present work."""
        self._changed.set()

    def retire(self, replica: str) -> None:
        if replica not in self.retiring:
            self.retiring.add(replica)
            self._changed.set()

    async def wait_applied(self) -> None:
        """Wait until the gateway has confirmed a table built after this call, or an equal one."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._changed.set()
        await waiter

    def shares(self, key: tuple[str, str]) -> dict[str, int] | None:
        """Return the weights by revision in the confirmed table; None: it has no route of the service."""
        route = self._route(key)
        return {backend.revision: backend.weight for backend in route.backends} if route else None

    def ports(self, key: tuple[str, str]) -> tuple[int, int]:
        """Return the HTTP and gRPC ports of the service in the confirmed table; 0: none."""
        route = self._route(key)
        return (route.port, route.grpc_port) if route else (0, 0)

    def _route(self, key: tuple[str, str]) -> Route | None:
        return next((route for route in self._published or () if (route.namespace, route.name) == key), None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _loop(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._publish_pending():
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _publish_pending(self) -> bool:
        """Publish the present table and hand over retired replicas; return whether all of it succeeded."""
        # Snapshots: what is added while the gateway answers may not be covered by this table.
        leaving, waiters, published = set(self.retiring), tuple(self._waiters), False
        with log_and_continue("a table for the gateway"):
            routes = tuple(self._routes())
            if routes != self._published:
                self.generation += 1
                self._on_publish(routes)
                await self.link.publish(Table(self.generation, routes, self._allowed_hosts, self._console))
                self._published = routes
            published = True
            for waiter in waiters:
                self._waiters.remove(waiter)
                if not waiter.done():
                    waiter.set_result(None)
            for replica in leaving:
                with log_and_continue(f"the removal of {replica}"):
                    self._on_unrouted(replica)
                    self.retiring.discard(replica)
        return published and self.retiring.isdisjoint(leaving)
