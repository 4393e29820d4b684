"""Connection of the control process to one gateway: requests are answered in order, other messages are events."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence

from pilotlight.gateway.messages import Applied, ControlMessage, GatewayMessage, Hello, Leaving, Sockets
from pilotlight.gateway.sockets import Channel

GatewayReply = tuple[Applied | Sockets | None, list[socket.socket]]  # with received sockets; None: the gateway is gone


class GatewayPeer:
    """`on_message` gets every message that is no reply; `on_disconnect` is called once, unless closed here."""

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
            self._resolve(message, sockets)
            return
        if isinstance(message, Hello) and not self.hello.done():
            self.hello.set_result(message)
        self.leaving = self.leaving or isinstance(message, Leaving)
        self._on_message(self, message)

    def _resolve(self, reply: Applied | Sockets, sockets: list[socket.socket]) -> None:
        pending = self._pending.popleft()
        if not pending.done():
            pending.set_result((reply, sockets))
            return
        for unused in sockets:
            unused.close()

    def _on_disconnect(self) -> None:
        if not self.hello.done():
            self.hello.set_exception(ConnectionError("closed before it said hello"))
        self.cancel_pending()
        self._on_closed(self)
