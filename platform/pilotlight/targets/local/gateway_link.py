"""The control process's end of the link to the gateway: keeps one alive, tells it tables, and hears what it sees.

Every HTTP listener is held here too. A gateway that dies, however it dies, is started again and gets the sockets and
the last table; meanwhile connections wait in the sockets. A control process that was started anew finds the gateway
alive and borrows the sockets back. One that is leaving still has requests, so it is told tables until it has ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final

from pilotlight import __version__
from pilotlight.errors import PlatformError
from pilotlight.gateway import sockets
from pilotlight.gateway.messages import Applied, Leaving, Lend, Publish, Sockets, Stop, Word
from pilotlight.gateway.table import Table
from pilotlight.targets.local.gateway_peer import Answer, Peer
from pilotlight.targets.local.gateway_process import KILL_S, Starter, gateway_command, see_end
from pilotlight.targets.local.held_sockets import HeldSockets
from pilotlight.targets.local.home import Home

__all__ = ["GatewayLink", "gateway_command"]

HELLO_S: Final = 20.0  # a gateway that is taken for dead keeps its ports, and we would find them taken
LEAVING_S: Final = 5.0  # for a gateway that is leaving to obey a table; one that hangs must not keep all others back


class GatewayLink:
    """Used from one event loop. `on_word` hears Hello, Wake, Report and Unreachable."""

    def __init__(
        self,
        home: Home,
        on_word: Callable[[Word], None],
        command: Sequence[str] | None = None,
        setting: str = "PILOTLIGHT_GATEWAY_PORT",
    ) -> None:
        self._home, self._on_word = home, on_word
        self._starter = Starter(command or gateway_command(home), home.logs / "gateway.log")
        self._held = HeldSockets(setting)
        self._gateway: Peer | None = None
        self._leaving: list[Peer] = []
        self._table: Table | None = None
        self._next: asyncio.Future[Applied] | None = None  # of a table that is yet to be sent
        self._sent: asyncio.Future[Applied] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._ended: asyncio.Event = asyncio.Event()
        self._started = self._closing = False
        self.pid = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """What is listened on, with the ports that the system chose."""
        return self._held.addresses

    async def start(self, listen: Sequence[str]) -> None:
        """Takes over a living gateway and its sockets, or binds the addresses and starts one.

        Raises CannotListen for a port that is taken, and PlatformError where no gateway comes up.
        """
        if await self._connect():
            with suppress(ConnectionError, TimeoutError):
                await self._borrow()
        self._held.share(listen)
        if self._gateway is None:
            await self._starter.start(self._connect)
        self._started = True
        self._greet()

    async def publish(self, table: Table) -> Applied:
        """Returns when it, or a newer one, is in force. Ports of the table's routes are bound and given up by it."""
        self._table = table
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        waiting = self._next
        self._pump()
        return await asyncio.shield(waiting)

    async def listen(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Binds ahead of a table that will name the ports; those that cannot be had, each with its reason."""
        failed = self._held.add(addresses)
        asked = self._tell_addresses() if self._gateway is not None else None
        answer = (await asked)[0] if asked is not None else None
        if not isinstance(answer, Applied):
            return failed
        wanted = tuple(f"{each}: " for each in self._held.expanded(addresses))
        return (*failed, *(line for line in answer.failed if line.startswith(wanted)))

    def unlisten(self, addresses: Sequence[str]) -> None:
        """Gives up what `listen` has bound and no table names; what one names goes with the next that does not."""
        self._held.remove(addresses)
        if self._gateway is not None:
            self._tell_addresses()

    async def close(self, stop_gateway: bool, drain_s: float) -> None:
        """With `stop_gateway`, returns when it has ended; it has `drain_s` to finish what is in flight."""
        self._closing = True
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.wait([self._reviving])
        if stop_gateway and self._gateway is not None:
            self._gateway.tell(Stop(drain_s))
            await see_end(self.pid, self._ended, drain_s + KILL_S)
        if stop_gateway:
            self._starter.give_up()
        for peer in (self._gateway, *self._leaving):
            if peer is not None:
                peer.close()
        self._held.close()
        for waiting in (self._sending, self._sent, self._next):
            if waiting is not None and not waiting.done():
                waiting.cancel()

    async def _connect(self) -> bool:
        """Whether a gateway answers that will stay."""
        connection = sockets.connect(self._home.gateway_socket)
        if connection is None:
            return False
        peer = Peer(connection, self._hear, self._lose)
        try:
            hello = await asyncio.wait_for(peer.hello, HELLO_S)
        except (TimeoutError, ConnectionError):
            peer.close()
            return False
        except asyncio.CancelledError:
            peer.close()
            raise
        if peer.closed:
            return False
        if peer.leaving:
            self._leaving.append(peer)
            return False
        self._gateway, self.pid = peer, hello.pid
        self._ended.clear()
        self._held.forget_served()
        return True

    async def _borrow(self) -> None:
        """Our duplicates of what the living gateway serves. One of another version makes way for one of ours."""
        gateway = self._gateway
        assert gateway is not None
        answer, came = await asyncio.wait_for(gateway.ask(Lend()), HELLO_S)
        if not isinstance(answer, Sockets):
            raise ConnectionError("it ended before it lent its sockets")
        self._held.adopt(answer.held, came)
        if gateway.hello.result().version != __version__:
            gateway.tell(Stop())
            self._see_off(gateway)

    def _see_off(self, gateway: Peer) -> None:
        """It accepts nothing more, but what it holds goes on by our tables, until it has ended."""
        self._leaving.append(gateway)
        self._gateway = None

    def _greet(self) -> None:
        self._tell_addresses()
        if self._table is not None and self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._pump()

    def _tell_addresses(self) -> "asyncio.Future[Answer] | None":
        """None: there was nothing to tell."""
        assert self._gateway is not None
        order, lent = self._held.order()
        return self._gateway.ask(order, lent) if order is not None else None

    def _pump(self) -> None:
        """One table is on its way at a time; of those that come meanwhile only the last is sent."""
        if self._gateway is None or self._sent is not None or self._next is None or self._table is None:
            return
        self._sent, self._next = self._next, None
        failed = self._held.follow(self._table)
        self._tell_addresses()
        order = Publish(self._table)
        applied = self._gateway.ask(order)
        others = {peer.ask(order): peer for peer in self._leaving}
        self._sending = asyncio.create_task(self._see_applied(applied, others, failed))

    async def _see_applied(
        self, applied: "asyncio.Future[Answer]", others: "dict[asyncio.Future[Answer], Peer]", failed: Sequence[str]
    ) -> None:
        """A replica that the table lacks is free when none of those who may have requests for it sends it any more."""
        answer, _ = await applied
        if not isinstance(answer, Applied):
            return  # it is gone, and the table is sent to the next one
        awaited = [each for each, peer in others.items() if not peer.silent]
        unheard = (await asyncio.wait(awaited, timeout=LEAVING_S))[1] if awaited else ()
        for each in unheard:
            others[each].silent = True
        done, self._sent = self._sent, None
        if done is not None and not done.done():
            done.set_result(Applied(answer.generation, (*failed, *answer.failed)))
        self._pump()

    def _hear(self, peer: Peer, word: Word) -> None:
        if not isinstance(word, Leaving):
            # What goes wrong there is no matter of the connection.
            asyncio.get_running_loop().call_soon(self._on_word, word)
        elif peer is self._gateway and not self._closing:
            # One that is leaving already may be told twice; at our own end it ends in any case, and that is waited for.
            self._see_off(peer)
            peer.expect_nothing()
            self._bereave()

    def _lose(self, peer: Peer) -> None:
        if peer in self._leaving:
            self._leaving.remove(peer)
        elif peer is self._gateway:
            self._gateway = None
            self._ended.set()
            self._bereave()

    def _bereave(self) -> None:
        """Nobody is there for what was asked; another one is found or started."""
        self._send_again()
        if self._started and not self._closing:
            self._reviving = asyncio.create_task(self._revive())

    def _send_again(self) -> None:
        """A table that was on its way when the gateway died is applied with the next one that is."""
        lost, self._sent = self._sent, None
        if lost is None:
            return
        if self._sending is not None:
            self._sending.cancel()
        if self._next is None:
            self._next = lost
            return

        def follow(done: "asyncio.Future[Applied]") -> None:
            if done.cancelled():
                lost.cancel()
            elif not lost.done():
                lost.set_result(done.result())

        self._next.add_done_callback(follow)

    async def _revive(self) -> None:
        """At once the first time; a gateway that dies at every start is started ever more rarely."""
        for attempt in count():
            try:
                if not await self._connect():
                    await self._starter.start(self._connect)
                break
            except (PlatformError, OSError):  # nothing may end this: without a gateway nobody is answered
                await asyncio.sleep(min(0.1 * 2**attempt, 5.0))
        self._greet()
