"""One end of the unix socket between control process and gateway: JSON lines with file descriptors.

Descriptors are sent as ancillary data of a line's bytes, at most `BATCH` at a time (the kernel's limit is 253). They
arrive in order and no later than the end of their line, so a line that announces n sockets takes the next n received.
"""

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from msgspec import MsgspecError, Struct, json

from pilotlight.wire.unix_socket import unix_address

BATCH: Final = 200
RECEIVE: Final = 256 * 1024
_CLOEXEC: Final = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_ANCILLARY: Final = socket.CMSG_SPACE(253 * array.array("i").itemsize)

Received = TypeVar("Received")
Piece = tuple[memoryview, Sequence[socket.socket]]


class Channel(Generic[Received]):
    """`on_message` gets each message with its sockets; `on_lost` is called once, but not after `close`."""

    def __init__(
        self,
        connection: socket.socket,
        kind: Any,
        on_message: Callable[[Received, list[socket.socket]], None],
        on_lost: Callable[[], None],
    ) -> None:
        connection.setblocking(False)
        self._socket, self._decoder = connection, json.Decoder(kind)
        self._on_message, self._on_lost = on_message, on_lost
        self._received, self._searched = bytearray(), 0
        self._fds: deque[int] = deque()
        self._unsent: deque[Piece] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection.fileno(), self._read)

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def send(self, message: Struct, sockets: Sequence[socket.socket] = ()) -> None:
        """Send or queue a message; dropped if the channel is closed: a new connection starts with the current state."""
        if self.closed:
            return
        waiting = bool(self._unsent)
        self._unsent.extend(pieces(json.encode(message) + b"\n", sockets))
        if not waiting:
            self._write()

    def close(self) -> None:
        if self.closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._unsent.clear()
        while self._fds:
            os.close(self._fds.popleft())

    def _close_lost(self) -> None:
        if not self.closed:
            self.close()
            self._on_lost()

    def _write(self) -> None:
        try:
            while self._unsent:
                piece, sockets = self._unsent[0]
                numbers = array.array("i", [each.fileno() for each in sockets])
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if sockets else []
                sent = self._socket.sendmsg([piece], rights)
                self._unsent.popleft()
                if sent < len(piece):
                    self._unsent.appendleft((piece[sent:], ()))  # descriptors are sent with the first byte
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._write)
        except OSError:
            self._loop.call_soon(self._close_lost)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(RECEIVE, _ANCILLARY, _CLOEXEC)
        except BlockingIOError:
            return None
        except OSError:
            return self._close_lost()
        self._fds.extend(_descriptors(ancillary))
        if not data or flags & socket.MSG_CTRUNC:  # truncated: the limit of open files is reached
            return self._close_lost()
        self._received += data
        return self._deliver()

    def _deliver(self) -> None:
        while not self.closed and (end := self._received.find(b"\n", self._searched)) >= 0:
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            self._searched = 0
            try:
                message = self._decoder.decode(line)
                # Listen and Sockets list one address per descriptor in `held`; other messages carry none.
                count = len(getattr(message, "held", ()))
                sockets = [socket.socket(fileno=self._fds.popleft()) for _ in range(count)]
            except (MsgspecError, IndexError):
                return self._close_lost()
            self._on_message(message, sockets)
        self._searched = len(self._received)
        return None


def pieces(line: bytes, sockets: Sequence[socket.socket]) -> Iterator[Piece]:
    """Split the line so that each batch of descriptors has a byte to be sent with."""
    view, position = memoryview(line), 0
    batches = [sockets[start : start + BATCH] for start in range(0, len(sockets), BATCH)] or [()]
    for batch in batches[:-1]:
        yield view[position : position + 1], batch
        position += 1
    yield view[position:], batches[-1]


def connect(path: Path) -> socket.socket | None:
    """Return a connection; None: no process listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with unix_address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            yield from numbers
