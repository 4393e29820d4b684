"""Control process's end of the gateway link: keeps a gateway running, sends tables, receives its reports.

The control process holds a duplicate of every HTTP listener. A gateway that dies is restarted and gets the sockets and
the last table; until then connections wait in the listen backlog. A restarted control process borrows the sockets back
from the living gateway. A leaving gateway still has requests, so it gets tables until it has exited.
"""

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.gateway import fd_channel
from pilotlight.gateway.control_link import (
    Applied,
    ControlMessage,
    GatewayMessage,
    Hello,
    Leaving,
    Lend,
    Publish,
    Sockets,
    Spent,
    Stop,
    build_id,
)
from pilotlight.gateway.fd_channel import Channel
from pilotlight.gateway.routing_table import Table
from pilotlight.targets.local.detached_process import start_detached
from pilotlight.targets.local.gateway.sockets import ListenerSet
from pilotlight.targets.local.home_directory import Home
from pilotlight.wire.machine import last_lines

GatewayReply = tuple[Applied | Sockets | None, list[socket.socket]]  # with received sockets; None: the gateway is gone
START_S: Final = 40.0  # an exit is noticed at once; a start may be slow on a busy machine
KILL_S: Final = 5.0  # beyond the drain, before a gateway that does not end is killed
LAST_LINES: Final = 10
HELLO_S: Final = 20.0  # generous: a gateway wrongly taken for dead still holds its ports
GRPC_RETRIES_S: Final = (0.02, 0.1, 0.4, 1.5, 0.0)  # pauses after a gRPC port in use: grpcio releases ports late
LEAVING_S: Final = 5.0  # for a leaving gateway to apply a table; one that hangs must not delay all others


class GatewayPeer:
    """Connection to one gateway: requests are answered in order, other messages are events.

    `on_message` gets every message that is no reply; `on_disconnect` is called once, unless closed here.
    """

    def __init__(
        self,
        connection: socket.socket,
        on_message: Callable[["GatewayPeer", GatewayMessage], None],
        on_disconnect: Callable[["GatewayPeer"], None],
    ) -> None:
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.leaving = False  # accepts no more connections and finishes its requests
        self.unresponsive = False  # did not reply to a table in time
        self._on_message, self._on_closed = on_message, on_disconnect
        self._pending: deque[asyncio.Future[GatewayReply]] = deque()  # replies come in this order
        self._channel: Channel[GatewayMessage] = Channel(connection, GatewayMessage, self._receive, self._on_disconnect)

    @property
    def closed(self) -> bool:
        return self._channel.closed

    def request(self, message: ControlMessage, lent: Sequence[socket.socket] = ()) -> "asyncio.Future[GatewayReply]":
        reply: asyncio.Future[GatewayReply] = asyncio.get_running_loop().create_future()
        self._pending.append(reply)
        self._channel.send(message, lent)
        if self.closed:
            self.cancel_pending()
        return reply

    def send(self, message: ControlMessage) -> None:
        """Send a message that has no reply."""
        self._channel.send(message)

    def cancel_pending(self) -> None:
        """Resolve pending requests with None. They stay queued: a late reply must match its own request."""
        for reply in self._pending:
            if not reply.done():
                reply.set_result((None, []))

    def close(self) -> None:
        self._channel.close()
        self.cancel_pending()

    def _receive(self, message: GatewayMessage, sockets: list[socket.socket]) -> None:
        if isinstance(message, Applied | Sockets):
            pending = self._pending.popleft()
            if not pending.done():
                pending.set_result((message, sockets))
                return
            for unused in sockets:
                unused.close()
            return
        if isinstance(message, Hello) and not self.hello.done():
            self.hello.set_result(message)
        self.leaving = self.leaving or isinstance(message, Leaving)
        self._on_message(self, message)

    def _on_disconnect(self) -> None:
        if not self.hello.done():
            self.hello.set_exception(ConnectionError("closed before the handshake"))
        self.cancel_pending()
        self._on_closed(self)


class GatewayLink:
    """Used from one event loop. `on_message` gets Hello, Wake, Report and Unreachable."""

    def __init__(
        self,
        home: Home,
        on_message: Callable[[GatewayMessage], None],
        command: Sequence[str] | None = None,
    ) -> None:
        self._home, self._on_message = home, on_message
        self._starter = GatewayStarter(command or gateway_command(home), home.logs / "gateway.log")
        self._listeners = ListenerSet()
        self._gateway: GatewayPeer | None = None
        self._leaving: list[GatewayPeer] = []
        self._table: Table | None = None
        self._queued: asyncio.Future[Applied] | None = None  # of the table to be sent next
        self._sent: asyncio.Future[Applied] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._disconnected: asyncio.Event = asyncio.Event()
        self._started = self._closing = False
        self.spent: Callable[[], Spent] | None = None  # what a new gateway has to know for quotas
        self.pid = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """Listening addresses, with the ports that the system chose."""
        return self._listeners.addresses

    async def start(self, listen: Sequence[str]) -> None:
        """Adopt a living gateway and its sockets, or bind the addresses and start one.

        Raise CannotListen for a port in use, PlatformError if no gateway starts.
        """
        if await self._connect():
            with suppress(ConnectionError, TimeoutError):
                await self._borrow_sockets()
        self._listeners.bind_shared(listen)
        if self._gateway is None:
            await self._starter.start(self._connect)
        self._started = True
        self._sync()

    async def publish(self, table: Table) -> Applied:
        """Send a table; return when it, or a newer one, is applied. Binds and closes ports as its routes name them."""
        self._table = table
        if self._queued is None:
            self._queued = asyncio.get_running_loop().create_future()
        waiting = self._queued
        self._send_next_table()
        return await asyncio.shield(waiting)

    async def listen(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Bind ahead of a table that will name the ports; return failures as `address: reason`."""
        failed = self._listeners.bind(addresses)
        prefixes = tuple(f"{each}: " for each in self._listeners.with_ipv6_equivalents(addresses))
        for pause in GRPC_RETRIES_S:
            self._listeners.unserve(addresses)
            sent = self._send_addresses() if self._gateway is not None else None
            reply = (await sent)[0] if sent is not None else None
            lines = reply.failed if isinstance(reply, Applied) else ()
            if not (unbound := [line for line in lines if line.startswith(prefixes)]):
                break
            await asyncio.sleep(pause)
        if failed := (*failed, *unbound):
            self.unlisten(addresses)
        return failed

    def unlisten(self, addresses: Sequence[str]) -> None:
        """Close what `listen` has bound and no table names; the rest closes with the next table that omits it."""
        self._listeners.release(addresses)
        if self._gateway is not None:
            self._send_addresses()

    async def close(self, stop_gateway: bool, drain_s: float) -> None:
        """Close the link. With `stop_gateway` wait for the gateway's exit; it has `drain_s` to finish requests."""
        self._closing = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        if stop_gateway and self._gateway is not None:
            self._gateway.send(Stop(drain_s))
            await wait_exit(self.pid, self._disconnected, drain_s + KILL_S)
        if stop_gateway:
            self._starter.abandon()
        for peer in (self._gateway, *self._leaving):
            if peer is not None:
                peer.close()
        self._listeners.close()
        for waiting in (self._sending, self._sent, self._queued):
            if waiting is not None and not waiting.done():
                waiting.cancel()

    async def _connect(self) -> bool:
        """Connect to a gateway that stays; return whether there is one."""
        connection = fd_channel.connect(self._home.gateway_socket)
        if connection is None:
            return False
        peer = GatewayPeer(connection, self._on_peer_message, self._on_disconnect)
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
        self._disconnected.clear()
        self._listeners.reset_served()
        return True

    async def _borrow_sockets(self) -> None:
        """Get duplicates of the living gateway's listeners; replace a gateway of other sources."""
        gateway = self._gateway
        assert gateway is not None
        reply, received = await asyncio.wait_for(gateway.request(Lend()), HELLO_S)
        if not isinstance(reply, Sockets):
            raise ConnectionError("it exited before it passed its sockets")
        self._listeners.adopt(reply.held, received)
        if gateway.hello.result().version != build_id():
            gateway.send(Stop())
            self._mark_leaving(gateway)

    def _mark_leaving(self, gateway: GatewayPeer) -> None:
        """Keep sending tables to a gateway that accepts no more connections, until it has exited."""
        self._leaving.append(gateway)
        self._gateway = None

    def _sync(self) -> None:
        if self._gateway is not None and self.spent is not None:
            self._gateway.send(self.spent())
        self._send_addresses()
        if self._table is not None and self._queued is None:
            self._queued = asyncio.get_running_loop().create_future()
        self._send_next_table()

    def _send_addresses(self) -> "asyncio.Future[GatewayReply] | None":
        """Send listeners that the gateway lacks; None: it has all of them."""
        assert self._gateway is not None
        update, lent = self._listeners.pending_update()
        return self._gateway.request(update, lent) if update is not None else None

    def _send_next_table(self) -> None:
        """Send the newest table unless one is in flight; tables in between are skipped."""
        if self._gateway is None or self._sent is not None or self._queued is None or self._table is None:
            return
        self._sent, self._queued = self._queued, None
        failed = self._listeners.sync(self._table)
        self._send_addresses()
        publish = Publish(self._table)
        applied = self._gateway.request(publish)
        others = {peer.request(publish): peer for peer in self._leaving}
        self._sending = asyncio.create_task(self._wait_applied(applied, others, failed))

    async def _wait_applied(
        self,
        applied: "asyncio.Future[GatewayReply]",
        others: "dict[asyncio.Future[GatewayReply], GatewayPeer]",
        failed: Sequence[str],
    ) -> None:
        """Resolve the table in flight once the gateway and every leaving one have applied it."""
        reply, _ = await applied
        if not isinstance(reply, Applied):
            return  # the gateway is gone; the table is sent to the next one
        # A leaving gateway may still route requests: a replica may be drained only after it has applied the table too.
        awaited = [each for each, peer in others.items() if not peer.unresponsive]
        timed_out = (await asyncio.wait(awaited, timeout=LEAVING_S))[1] if awaited else ()
        for each in timed_out:
            others[each].unresponsive = True
        done, self._sent = self._sent, None
        if done is not None and not done.done():
            done.set_result(Applied(reply.generation, (*failed, *reply.failed)))
        self._send_next_table()

    def _on_peer_message(self, peer: GatewayPeer, message: GatewayMessage) -> None:
        if not isinstance(message, Leaving):
            # Scheduled, so that an exception of the handler does not close the connection.
            asyncio.get_running_loop().call_soon(self._on_message, message)
        elif peer is self._gateway and not self._closing:
            # A second Leaving is ignored; while closing, the gateway's exit is awaited anyway.
            self._mark_leaving(peer)
            peer.cancel_pending()
            self._replace_gateway()

    def _on_disconnect(self, peer: GatewayPeer) -> None:
        if peer in self._leaving:
            self._leaving.remove(peer)
        elif peer is self._gateway:
            self._gateway = None
            self._disconnected.set()
            self._replace_gateway()

    def _replace_gateway(self) -> None:
        """Requeue the table in flight and find or start another gateway."""
        self._requeue_table()
        if self._started and not self._closing:
            self._restarting = asyncio.create_task(self._restart())

    def _requeue_table(self) -> None:
        """Requeue the table in flight of a dead gateway: it resolves with the next table that is applied."""
        lost, self._sent = self._sent, None
        if lost is None:
            return
        if self._sending is not None:
            self._sending.cancel()
        if self._queued is None:
            self._queued = lost
            return

        def follow(done: "asyncio.Future[Applied]") -> None:
            if done.cancelled():
                lost.cancel()
            elif not lost.done():
                lost.set_result(done.result())

        self._queued.add_done_callback(follow)

    async def _restart(self) -> None:
        """Restart the gateway with exponential backoff, the first time at once."""
        for attempt in count():
            try:
                if not await self._connect():
                    await self._starter.start(self._connect)
                break
            except (PlatformError, OSError):  # retried for ever: without a gateway no request is served
                await asyncio.sleep(min(0.1 * 2**attempt, 5.0))
        self._sync()


def gateway_command(home: Home, tls: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command; `tls` are the gateway's flags about certificates."""
    return (sys.executable, "-m", "pilotlight.gateway", "--home", str(home.root), *tls)


class GatewayStarter:
    """Starts a gateway, and remembers one that has not connected yet so that it can be ended."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = tuple(command), log
        self._unconnected_pid = 0

    async def start(self, connect: Callable[[], Awaitable[bool]]) -> None:
        """Start a gateway; return when `connect` has reached it. Raise PlatformError with the end of its log."""
        status: list[int] = []
        self._unconnected_pid = start_detached(self._command, self._log, status.append)
        until = asyncio.get_running_loop().time() + START_S
        while not await connect():
            if status or asyncio.get_running_loop().time() > until:
                self.abandon(status)
                why = f"it exited with status {status[0]}" if status else f"it did not answer within {START_S:g} s"
                end = ""
                with suppress(OSError):
                    end = "\n".join(last_lines(self._log, LAST_LINES))
                raise PlatformError(f"the gateway did not start: {why}; end of its log:\n{end}")
            await asyncio.sleep(0.005)
        self._unconnected_pid = 0

    def abandon(self, status: Sequence[int] = ()) -> None:
        """End a gateway that has not connected, unless it has exited with `status`."""
        if self._unconnected_pid and not status:
            with suppress(ProcessLookupError):
                os.kill(self._unconnected_pid, signal.SIGTERM)
        self._unconnected_pid = 0


async def wait_exit(pid: int, disconnected: asyncio.Event, seconds: float) -> None:
    """Wait for the gateway to disconnect and exit; kill it after `seconds`, or KILL_S after the disconnect."""
    with suppress(TimeoutError):
        await asyncio.wait_for(disconnected.wait(), seconds)
    until = asyncio.get_running_loop().time() + (KILL_S if disconnected.is_set() else 0.0)
    with suppress(ProcessLookupError, PermissionError):
        while asyncio.get_running_loop().time() < until:
            os.kill(pid, 0)
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
