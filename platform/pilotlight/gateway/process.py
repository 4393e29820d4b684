"""The gateway as a process: data plane, listeners and reports put together, and obeying the control process.

    control process ── orders ──▶ ControlPort ──▶ Gateway ──▶ Plane, Listeners
                    ◀── words ───                         ◀── wakes, reports

Orders are obeyed one after the other, in the order in which they came, each answered before the next is begun.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pilotlight import __version__
from pilotlight.gateway.addresses import Address
from pilotlight.gateway.admission import Gatekeeper
from pilotlight.gateway.link import Answer, ControlPort
from pilotlight.gateway.listeners import Listeners, Server
from pilotlight.gateway.logs import log
from pilotlight.gateway.messages import Applied, Hello, Leaving, Lend, Listen, Order, Publish, Sockets, Stop
from pilotlight.gateway.metrics import Metrics
from pilotlight.gateway.plane import Key, Plane
from pilotlight.gateway.reporting import Reporter
from pilotlight.gateway.respawn import Respawn
from pilotlight.gateway.table import Table

if TYPE_CHECKING:
    from pilotlight.gateway.grpc_proxy import GrpcProxy

DRAIN_S: Final = 30.0  # of a gateway that is ended by a signal


class Gateway:
    """`folder` is the platform's home; `respawn` the command that starts the control process, empty: nobody does."""

    def __init__(self, folder: Path, respawn: Sequence[str] = ()) -> None:
        self._respawn = Respawn(respawn)
        self._link = ControlPort(folder, self._greet, self._take, self._respawn.lost)
        self._metrics = Metrics()
        self._gate = Gatekeeper(self._metrics.refused)
        self._plane = Plane(self._link.say, self._link.say, self._gate)
        self._grpc: GrpcProxy | None = None
        self._listeners = Listeners(self._plane, self._start_grpc)
        self._reporter = Reporter(self._plane, self._metrics.add, self._link.say)
        self._plane.own["metrics"] = self._page
        self._orders: asyncio.Queue[tuple[Order, list[socket.socket], Answer]] = asyncio.Queue()
        self._ending: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until a signal, or the order to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate)
        await self._link.open()
        log("gateway.started", "waiting for the control process", pid=os.getpid(), version=__version__)
        obeying = asyncio.create_task(self._obey())
        obeying.add_done_callback(self._disobeyed)
        try:
            await self._end(await self._ending)
        finally:
            obeying.cancel()
            self._link.give_up(disconnect=True)

    def _greet(self, pid: int) -> Hello:
        self._respawn.found(pid)
        return Hello(__version__, os.getpid(), self._plane.generation)

    def _take(self, order: Order, came: list[socket.socket], answer: Answer) -> None:
        self._orders.put_nowait((order, came, answer))

    async def _obey(self) -> None:
        while True:
            order, came, answer = await self._orders.get()
            match order:
                case Publish(table):
                    await self._publish(table)
                    answer(Applied(table.generation, self._listeners.failed))
                case Listen():
                    await self._listeners.serve(order, came)
                    answer(Applied(self._plane.generation, self._listeners.failed))
                case Lend():
                    held, lent = self._listeners.lend()
                    answer(Sockets(held), lent)
                case Stop(drain_s):
                    self._stop(drain_s)

    async def _publish(self, table: Table) -> None:
        self._listeners.follow(table)
        self._plane.publish(table)
        self._metrics.follow(table)
        if self._grpc is not None:
            self._grpc.follow(table)
        await self._listeners.begin()

    def _disobeyed(self, task: "asyncio.Task[None]") -> None:
        """A defect of ours: better to end and be started anew than to go deaf."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._ending.done():
            self._ending.set_exception(error)

    def _terminate(self) -> None:
        """Ended by a signal: a successor may be started meanwhile, and what is held here still gets its tables."""
        self._link.give_up(disconnect=False)
        self._link.say(Leaving())
        self._stop(DRAIN_S)

    def _stop(self, drain_s: float) -> None:
        if not self._ending.done():
            self._ending.set_result(drain_s)

    async def _end(self, drain_s: float) -> None:
        """Connections that nobody accepted yet wait for the successor; what is in flight here is finished."""
        self._respawn.cancel()
        self._listeners.close()
        self._link.give_up(disconnect=False)
        log("gateway.draining", f"finishing what is in flight, for {drain_s:g} s at most")
        await asyncio.gather(self._plane.drain(drain_s), *([self._grpc.drain(drain_s)] if self._grpc else []))
        self._reporter.report()
        self._reporter.close()
        log("gateway.ended", "nothing is in flight")

    async def _start_grpc(self, address: Address, route: Callable[[], Key]) -> Server:
        """grpcio is imported with the first port that needs it."""
        from pilotlight.gateway.grpc_proxy import GrpcProxy

        if self._grpc is None:
            self._grpc = GrpcProxy(self._plane, self._gate, self._link.say)
        return await self._grpc.start(address, route)

    def _page(self) -> tuple[int, str, bytes]:
        self._reporter.report()
        return self._metrics.page()
