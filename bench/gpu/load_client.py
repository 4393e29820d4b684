"""Load from processes of their own: connections that send prebuilt requests by raw sockets, each after its last answer.

`Clients` starts the processes once; `measure` has all of them send until a moment that they share, and counts what was
answered between two moments.
"""

import multiprocessing
import re
import selectors
import socket
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Order(NamedTuple):
    """What one process is to do; times are of the monotonic clock, which processes share."""

    port: int
    request: bytes
    connections: int
    begin: float
    end: float


class Clients:
    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes = []
        for _ in range(processes):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            self._ends.append(mine)
            self._processes.append(process)

    def measure(self, port: int, request: bytes, connections: int, warm_s: float, seconds: float) -> dict[str, Any]:
        begin = time.monotonic() + warm_s
        shares = [connections // len(self._ends) + (i < connections % len(self._ends)) for i in range(len(self._ends))]
        ends = [end for end, share in zip(self._ends, shares, strict=True) if share]
        for end, share in zip(ends, filter(None, shares), strict=True):
            end.send(Order(port, request, share, begin, begin + seconds))
        told = [end.recv() for end in ends]
        if failed := [one for one in told if isinstance(one, str)]:
            raise RuntimeError(f"{len(failed)} clients failed: {failed[0]}")
        times = sorted(took for one in told for took in one)
        if not times:
            raise RuntimeError("no answer in time")
        return {
            "answers_s": round(len(times) / seconds, 1),
            "p50_ms": round(times[len(times) // 2] * 1e3, 2),
            "p99_ms": round(times[len(times) * 99 // 100] * 1e3, 2),
        }

    def close(self) -> None:
        for end in self._ends:
            end.send(None)
        for process in self._processes:
            process.join(10)


def _serve(orders: Connection) -> None:
    while (order := orders.recv()) is not None:
        try:
            orders.send(_load(order))
        except Exception:
            orders.send(traceback.format_exc())


def _load(order: Order) -> list[float]:
    """How long each answer took that came between the two moments."""
    selector, times = selectors.DefaultSelector(), []
    for _ in range(order.connections):
        connection = Asking(order)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    while (now := time.monotonic()) < order.end:
        for key, _ in selector.select(max(0.0, order.end - now)):
            asked = key.data.read()
            if asked is None:
                continue
            answered = time.monotonic()
            if order.begin <= answered < order.end:
                times.append(answered - asked)
            key.data.ask()
    for key in list(selector.get_map().values()):
        key.data.socket.close()
    return times


class Asking:
    """One connection with one request on its way."""

    def __init__(self, order: Order) -> None:
        self.socket = socket.create_connection(("127.0.0.1", order.port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = order.request
        self._space = bytearray(1 << 18)
        self._filled = self._whole = 0
        self.ask()

    def ask(self) -> None:
        self._filled = self._whole = 0
        self._asked = time.monotonic()
        self.socket.sendall(self._request)

    def read(self) -> float | None:
        """When it was asked, once the answer is whole."""
        count = self.socket.recv_into(memoryview(self._space)[self._filled :])
        if not count:
            raise ConnectionError(f"the server closed the connection after {bytes(self._space[: self._filled])!r}")
        self._filled += count
        if not self._whole:
            self._read_head()
        return self._asked if self._whole and self._filled >= self._whole else None

    def _read_head(self) -> None:
        end = self._space.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            return
        head = bytes(self._space[:end])
        found = LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 200") or found is None:
            raise ConnectionError(f"the server said {bytes(self._space[: self._filled])[:500]!r}")
        self._whole = end + 4 + int(found[1])
