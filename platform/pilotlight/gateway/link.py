"""The gateway's end of the control link: a unix socket in its folder, to which the control process connects.

A lock on the folder is held while the gateway takes requests, so a socket without a lock is stale. There is one
connection at a time: a newer one replaces the older one.
"""

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pilotlight.errors import PlatformError
from pilotlight.gateway.messages import ControlMessage, GatewayMessage, Hello
from pilotlight.gateway.sockets import Channel
from pilotlight.wire.unix import listen, peer_pid

SOCKET: Final = "gateway.sock"
LOCK: Final = "gateway.lock"
BACKLOG: Final = 8

SendReply = Callable[..., None]  # a message, and sockets to send with it
OnControlMessage = Callable[[ControlMessage, list[socket.socket], SendReply], None]


class AlreadyRunning(PlatformError):
    """Another gateway runs in this folder."""


class ControlServer:
    """`on_message` gets each message with its sockets and a function to reply; `on_lost` is called after a disconnect.

    `hello` makes the first message; it gets the pid of the control process, 0 where unknown.
    """

    def __init__(
        self, folder: Path, hello: Callable[[int], Hello], on_message: OnControlMessage, on_lost: Callable[[], None]
    ) -> None:
        self._folder, self._hello, self._on_message, self._on_lost = folder, hello, on_message, on_lost
        self._channel: Channel[ControlMessage] | None = None
        self._lock = -1
        self._listener: socket.socket | None = None

    @property
    def connected(self) -> bool:
        return self._channel is not None

    async def open(self, wait_s: float = 5.0) -> None:
        """Lock the folder and listen; wait up to `wait_s` for a predecessor to exit. Raises AlreadyRunning."""
        self._lock = await _acquire_lock(self._folder / LOCK, wait_s)
        self._listener = listen(self._folder / SOCKET, BACKLOG)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def send(self, message: GatewayMessage, sockets: Sequence[socket.socket] = ()) -> None:
        if self._channel is not None:
            self._channel.send(message, sockets)

    def release(self, *, disconnect: bool) -> None:
        """Release the folder for a successor; a connection may stay open until the exit."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with suppress(FileNotFoundError):
                (self._folder / SOCKET).unlink()
            os.close(self._lock)
        if disconnect and self._channel is not None:
            self._channel.close()
            self._channel = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if self._channel is not None:
            self._channel.close()

        def on_message(message: ControlMessage, sockets: list[socket.socket]) -> None:
            self._on_message(message, sockets, channel.send)

        channel: Channel[ControlMessage] = Channel(
            connection, ControlMessage, on_message, lambda: self._on_channel_lost(channel)
        )
        self._channel = channel
        channel.send(self._hello(peer_pid(connection)))

    def _on_channel_lost(self, channel: Channel[Any]) -> None:
        if self._channel is channel:
            self._channel = None
            self._on_lost()


def is_running(folder: Path) -> bool:
    """Whether a gateway runs in the folder. Tries the lock only: connecting would disconnect the control process."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


async def _acquire_lock(path: Path, wait_s: float) -> int:
    """Return the locked descriptor; the kernel releases the lock when the process exits."""
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if loop.time() >= until:
                os.close(lock)
                raise AlreadyRunning(f"another gateway runs in {path.parent}; stop it first") from None
            await asyncio.sleep(0.02)
        else:
            return lock
