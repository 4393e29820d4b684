"""The control process's end of the link to the gateway: keeps one alive, tells it tables, and hears what it sees.

Every HTTP listener is held here too. A gateway that dies, however it dies, is started again and gets the sockets and
the last table; meanwhile connections wait in the sockets. A control process that was started anew finds the gateway
alive and borrows the sockets back.
"""

import asyncio
import os
import shlex
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from pilotlight import __version__
from pilotlight.errors import PlatformError
from pilotlight.gateway import sockets
from pilotlight.gateway.detached import start_detached
from pilotlight.gateway.messages import Applied, Hello, Leaving, Lend, Publish, Sockets, Stop, Word
from pilotlight.gateway.sockets import Channel
from pilotlight.gateway.table import Table
from pilotlight.targets.local.held_sockets import HeldSockets
from pilotlight.targets.local.home import Home

START_S: Final = 10.0
HELLO_S: Final = 5.0
KILL_S: Final = 5.0  # beyond the drain, before a gateway that does not end is killed
LAST_LINES: Final = 10

Answer = Applied | Sockets | None  # None: the gateway is gone
Heard = Callable[[Answer, list[socket.socket]], None]


def gateway_command(home: Home, respawn: Sequence[str] = ()) -> tuple[str, ...]:
    """What starts a gateway; `respawn` is the command by which it brings the control process back."""
    words = (sys.executable, "-m", "pilotlight.gateway", "--home", str(home.root))
    return (*words, "--respawn", shlex.join(respawn)) if respawn else words


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
        self._command = tuple(command or gateway_command(home))
        self._held = HeldSockets(setting)
        self._channel: Channel[Word] | None = None
        self._leaving: list[Channel[Word]] = []  # of gateways that finish what they have
        self._greeted: asyncio.Future[Hello] | None = None
        self._answers: deque[Heard] = deque()  # one for each order that is answered, in their order
        self._table: Table | None = None
        self._next: asyncio.Future[Applied] | None = None  # of a table that is yet to be sent
        self._sent: asyncio.Future[Applied] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._ended: asyncio.Event = asyncio.Event()
        self._started = self._closing = False
        self.pid = 0
        self._unconnected = 0  # pid of a gateway that was started and has not answered yet

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
        if self._channel is None:
            await self._spawn()
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
        answered: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        if self._channel is None or not self._tell_addresses(answered):
            return failed
        applied = await answered
        wanted = self._held.expanded(addresses)
        return (*failed, *(line for line in applied.failed if line.startswith(tuple(f"{each}: " for each in wanted))))

    async def close(self, stop_gateway: bool, drain_s: float) -> None:
        """With `stop_gateway`, returns when it has ended; it has `drain_s` to finish what is in flight."""
        self._closing = True
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.wait([self._reviving])
        if stop_gateway and self._channel is not None:
            self._channel.send(Stop(drain_s))
            await self._see_it_end(drain_s + KILL_S)
        if stop_gateway:
            self._end_unconnected()
        for channel in (self._channel, *self._leaving):
            if channel is not None:
                channel.close()
        self._held.close()
        for waiting in (self._sent, self._next):
            if waiting is not None and not waiting.done():
                waiting.cancel()

    async def _see_it_end(self, seconds: float) -> None:
        """It closes the connection when nothing is in flight, and is gone a moment later."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        until = asyncio.get_running_loop().time() + (KILL_S if self._ended.is_set() else 0.0)
        with suppress(ProcessLookupError, PermissionError):
            while asyncio.get_running_loop().time() < until:
                os.kill(self.pid, 0)
                await asyncio.sleep(0.01)
            os.kill(self.pid, signal.SIGKILL)

    async def _connect(self) -> bool:
        """Whether a gateway answers."""
        connection = sockets.connect(self._home.gateway_socket)
        if connection is None:
            return False
        greeted = self._greeted = asyncio.get_running_loop().create_future()
        channel: Channel[Word] = Channel(
            connection, Word, lambda word, came: self._hear(channel, word, came), lambda: self._lose(channel)
        )
        try:
            hello = await asyncio.wait_for(greeted, HELLO_S)
        except (TimeoutError, ConnectionError):
            channel.close()
            return False
        except asyncio.CancelledError:
            channel.close()
            raise
        if channel.closed:
            return False
        self._channel, self.pid = channel, hello.pid
        self._ended.clear()
        self._held.forget_served()
        return True

    async def _spawn(self) -> None:
        """A gateway of our own, greeted. Tells the end of its log when none comes up."""
        status: list[int] = []
        log = self._home.logs / "gateway.log"
        self._unconnected = start_detached(self._command, log, status.append)
        until = asyncio.get_running_loop().time() + START_S
        while not await self._connect():
            if status or asyncio.get_running_loop().time() > until:
                self._end_unconnected(status)
                why = f"it ended with status {status[0]}" if status else f"it did not answer within {START_S:g} s"
                raise PlatformError(f"the gateway did not start: {why}; its log ends:\n{_tail(log)}")
            await asyncio.sleep(0.005)
        self._unconnected = 0

    def _end_unconnected(self, status: Sequence[int] = ()) -> None:
        """One that was started and never greeted: nobody else would end it."""
        if self._unconnected and not status:
            with suppress(ProcessLookupError):
                os.kill(self._unconnected, signal.SIGTERM)
        self._unconnected = 0

    async def _borrow(self) -> None:
        """Our duplicates of what the living gateway serves. One of another version makes way for one of ours."""
        assert self._channel is not None
        lent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(answer: Answer, came: list[socket.socket]) -> None:
            if isinstance(answer, Sockets):
                self._held.adopt(answer.held, came)
                lent.set_result(None)
            elif not lent.done():
                lent.set_exception(ConnectionError("it ended before it lent its sockets"))

        self._answers.append(take)
        self._channel.send(Lend())
        await asyncio.wait_for(lent, HELLO_S)
        assert self._greeted is not None
        if self._greeted.result().version != __version__:
            self._channel.send(Stop())
            self._see_off(self._channel)

    def _see_off(self, channel: Channel[Word]) -> None:
        """It accepts nothing more, but what it holds goes on by our tables, until it has ended."""
        self._leaving.append(channel)
        self._channel = None

    def _greet(self) -> None:
        self._tell_addresses(None)
        if self._table is not None and self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._pump()

    def _tell_addresses(self, answered: "asyncio.Future[Applied] | None") -> bool:
        """Whether there was anything to tell."""
        assert self._channel is not None
        order, lent = self._held.order()
        if order is None:
            return False

        def take(answer: Answer, came: list[socket.socket]) -> None:
            if answered is not None and not answered.done():
                answered.set_result(answer if isinstance(answer, Applied) else Applied(0))

        self._answers.append(take)
        self._channel.send(order, lent)
        return True

    def _pump(self) -> None:
        """One table is on its way at a time; of those that come meanwhile only the last is sent."""
        if self._channel is None or self._sent is not None or self._next is None or self._table is None:
            return
        self._sent, self._next = self._next, None
        failed = self._held.follow(self._table)
        self._tell_addresses(None)

        def take(answer: Answer, came: list[socket.socket]) -> None:
            if isinstance(answer, Applied):
                done, self._sent = self._sent, None
                if done is not None and not done.done():
                    done.set_result(Applied(answer.generation, (*failed, *answer.failed)))
                self._pump()

        self._answers.append(take)
        for channel in (self._channel, *self._leaving):
            channel.send(Publish(self._table))

    def _hear(self, channel: Channel[Word], word: Word, came: list[socket.socket]) -> None:
        if isinstance(word, Applied | Sockets):
            if channel is self._channel:
                self._answers.popleft()(word, came)
            return
        if isinstance(word, Leaving):
            # One that is leaving already may be told twice; at our own end it ends in any case, and that is waited for.
            if channel is self._channel and not self._closing:
                self._see_off(channel)
                self._bereave()
            return
        if isinstance(word, Hello) and self._greeted is not None and not self._greeted.done():
            self._greeted.set_result(word)
        asyncio.get_running_loop().call_soon(self._on_word, word)  # what goes wrong there is no matter of the channel

    def _lose(self, channel: Channel[Word]) -> None:
        if channel in self._leaving:
            self._leaving.remove(channel)
        elif channel is not self._channel:
            if self._greeted is not None and not self._greeted.done():
                self._greeted.set_exception(ConnectionError("closed before it said hello"))
        else:
            self._channel = None
            self._ended.set()
            self._bereave()

    def _bereave(self) -> None:
        """Nobody is there for what was asked; another one is found or started."""
        while self._answers:
            self._answers.popleft()(None, [])
        self._send_again()
        if self._started and not self._closing:
            self._reviving = asyncio.create_task(self._revive())

    def _send_again(self) -> None:
        """A table that was on its way when the gateway died is applied with the next one that is."""
        lost, self._sent = self._sent, None
        if lost is None:
            return
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
                    await self._spawn()
                break
            except (PlatformError, OSError):  # nothing may end this: without a gateway nobody is answered
                await asyncio.sleep(min(0.1 * 2**attempt, 5.0))
        self._greet()


def _tail(log: Path) -> str:
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-LAST_LINES:])
    return ""
