"""The gateway's end of the link: a unix socket in its folder, where the control process comes and goes.

One gateway has a folder: it holds a lock for as long as it takes requests, so a socket that was left behind is known to
be dead. One control process is listened to: a newer connection replaces the older one.
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
from pilotlight.gateway.messages import Hello, Order, Word
from pilotlight.gateway.sockets import Channel
from pilotlight.wire.unix import listen, peer_pid

SOCKET: Final = "gateway.sock"
LOCK: Final = "gateway.lock"
BACKLOG: Final = 8

Answer = Callable[..., None]  # a word, and sockets that go with it
OnOrder = Callable[[Order, list[socket.socket], Answer], None]


class AlreadyRunning(PlatformError):
    """Another gateway has this folder."""


class ControlPort:
    """`on_order` gets each order with its sockets and a way to answer; `on_lost` is told of a closed connection.

    `greet` gets the pid of who has connected, 0 where the system does not tell it.
    """

    def __init__(
        self, folder: Path, greet: Callable[[int], Hello], on_order: OnOrder, on_lost: Callable[[], None]
    ) -> None:
        self._folder, self._greet, self._on_order, self._on_lost = folder, greet, on_order, on_lost
        self._channel: Channel[Order] | None = None
        self._lock = -1
        self._listener: socket.socket | None = None

    @property
    def connected(self) -> bool:
        return self._channel is not None

    async def open(self, wait_s: float = 5.0) -> None:
        """Waits a moment for a gateway that is about to end."""
        self._lock = await _locked(self._folder / LOCK, wait_s)
        self._listener = listen(self._folder / SOCKET, BACKLOG)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def say(self, word: Word, held: Sequence[socket.socket] = ()) -> None:
        if self._channel is not None:
            self._channel.send(word, held)

    def give_up(self, *, disconnect: bool) -> None:
        """Lets a successor have the folder. Who is connected may stay, to see the end."""
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

        def order(message: Order, came: list[socket.socket]) -> None:
            self._on_order(message, came, channel.send)

        channel: Channel[Order] = Channel(connection, Order, order, lambda: self._lose(channel))
        self._channel = channel
        channel.send(self._greet(peer_pid(connection)))

    def _lose(self, channel: Channel[Any]) -> None:
        if self._channel is channel:
            self._channel = None
            self._on_lost()


def lives(folder: Path) -> bool:
    """Whether a gateway takes requests here. Only its lock is tried: who connects is taken for the control process."""
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


async def _locked(path: Path, wait_s: float) -> int:
    """The lock belongs to the open file: it is gone with the process, however that ends."""
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
