"""Connection of a front with the model process: messages over a unix socket, large tensors in shared memory.

A message is written once the sender's memory has room for its tensors; until then it waits, and all later ones behind
it: order is kept, and nothing is lost. The socket orders what both processes see of the memory, wakes the receiver, and
ends when the other process does. The memory belongs to no name: the kernel frees it with its last process.
"""

import asyncio
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from pilotlight_predictor.core.requests import Outputs
from pilotlight_predictor.core.threads import in_thread
from pilotlight_predictor.fronts.arena import Arena, aligned
from pilotlight_predictor.fronts.messages import LENGTH, Message, Place, decode, encode, raw_of
from pilotlight_predictor.gpu.cuda_driver import SharedMemory

SMALL: Final = 1 << 12  # bytes of a tensor that goes in its message: copied in less time than a block is found
HELLO: Final = b"hello"
Build = Callable[[list[Place], int], Message]  # tensors and the offset of their block, -1 without one


class Unsent(NamedTuple):
    number: int
    build: Build
    tensors: Outputs | None


class Link(asyncio.Protocol):
    """One end. `handle` gets each message, `lost` is called once when the other process has closed."""

    def __init__(
        self, own: mmap.mmap, other: mmap.mmap, handle: Callable[["Link", Message], None],
        lost: Callable[["Link"], None],
    ) -> None:  # fmt: skip
        self._own = memoryview(own)
        self.other = memoryview(other).toreadonly()
        self._arena = Arena(len(own))
        self._handle, self._lost = handle, lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._out: list[bytes] = []
        self._writable = True
        self.unsent: deque[Unsent] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport, self._writable = None, False
        self._lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.send_unsent()

    def data_received(self, data: bytes) -> None:
        received, position = self._received, 0
        received += data
        view = memoryview(received)
        while position + LENGTH.size <= len(view):
            end = position + LENGTH.size + LENGTH.unpack_from(view, position)[0]
            if end > len(view):
                break
            message, position = decode(view[position + LENGTH.size : end]), end
            self._handle(self, message)
        view.release()
        del received[:position]

    def send(self, message: Message) -> None:
        """Send a message without tensors, ahead of those that wait for memory."""
        if not self._out:
            self._loop.call_soon(self._flush)
        text = encode(message)
        self._out += (LENGTH.pack(len(text)), text)

    def send_tensors(self, number: int, build: Build, tensors: Outputs | None) -> bool:
        """Send a message with tensors; False if it has to wait for memory."""
        if self.unsent or not self._send_now(build, tensors):
            self.unsent.append(Unsent(number, build, tensors))
            return False
        return True

    def send_unsent(self) -> None:
        while self.unsent and self._send_now(*self.unsent[0][1:]):
            self.unsent.popleft()

    def release(self, offset: int) -> None:
        """Free the block of a message that the other side has read."""
        if offset >= 0:
            self._arena.release(offset)
            if self.unsent:
                self.send_unsent()

    def _send_now(self, build: Build, tensors: Outputs | None) -> bool:
        if not self._writable:
            return False
        written = raw_of(tensors) if tensors else []
        sizes = [aligned(len(raw)) if len(raw) > SMALL else 0 for *_, raw in written]
        offset = -1
        if (total := sum(sizes)) and total <= self._arena.size:  # what could never fit goes through the socket
            block = self._arena.allocate(total)
            if block is None:
                return False
            offset = block
        position, places = offset, []
        for (name, datatype, shape, raw), size in zip(written, sizes, strict=True):
            if size and offset >= 0:
                self._own[position : position + len(raw)] = raw
                places.append(Place(name, datatype, shape, None, position, len(raw)))
                position += size
            else:
                places.append(Place(name, datatype, shape, bytes(raw)))
        try:
            self.send(build(places, offset))
        except BaseException:
            if offset >= 0:
                self._arena.release(offset)
            raise
        return True

    def _flush(self) -> None:
        if self._out and self._transport is not None:
            out, self._out = self._out, []
            self._transport.write(b"".join(out))


async def say_hello(hello: socket.socket, size: int, handle: Any, lost: Any) -> Link:
    """Create the memory and the socket of a front, and give their other ends to the model process, now or next."""
    requests, answers = (os.memfd_create(f"front-{name}") for name in ("requests", "answers"))
    mine, theirs = socket.socketpair()
    try:
        for descriptor in (requests, answers):
            os.truncate(descriptor, size)
        link = Link(mmap.mmap(requests, size), mmap.mmap(answers, size), handle, lost)
        descriptors = (requests, answers, theirs.fileno())
        await in_thread(lambda: socket.send_fds(hello, [HELLO], descriptors))  # waits while many hellos are unread
    finally:
        theirs.close()
        os.close(requests)
        os.close(answers)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=mine)
    return link


async def accept(hello: socket.socket, handle: Any, lost: Any) -> Link | None:
    """Accept the front whose hello waits; None if there is none, or it has gone."""
    hello.setblocking(False)  # recv_fds ignores its flags
    try:
        _, (requests, answers, end), *_ = socket.recv_fds(hello, len(HELLO), 3)
    except BlockingIOError:
        return None
    link = Link(mmap.mmap(answers, 0), SharedMemory(requests, 0), handle, lost)
    os.close(requests)
    os.close(answers)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=socket.socket(fileno=end))
    return link
