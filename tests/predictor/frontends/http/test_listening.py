"""The port closes behind the last client who came in, and resets nobody."""

import asyncio
import errno
import os
import select
import socket
import sys

import pytest

from pilotlight_predictor.frontends.http.messages import HttpResponse
from pilotlight_predictor.frontends.http.server import HttpServer, accept_all, drop_new_connections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can filter what reaches a socket")


def test_who_has_connected_is_accepted_and_who_comes_later_is_overlooked_until_the_port_is_closed() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    with socket.create_connection(address) as early, socket.socket() as late:
        drop_new_connections(listener)
        late.setblocking(False)
        late.connect_ex(address)
        early.sendall(b"I was here")
        (accepted,) = accept_all(listener)
        assert accepted.recv(100) == b"I was here"
        accepted.close()
        assert overlooked(late)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def overlooked(late: socket.socket) -> bool:
    """Its packet was dropped; the one that it sends a second later meets a port that is closed."""
    decided = select.select([], [late], [], 0)[1]
    return not decided or late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


class LastMoment(socket.socket):
    """A listener to which somebody comes after the last accept and before it is closed."""

    def __init__(self, late: socket.socket, *, fileno: int | None = None) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM, 0, fileno)
        self.late, self.is_last = late, fileno is not None

    def dup(self) -> "LastMoment":
        return LastMoment(self.late, fileno=os.dup(self.fileno()))

    def close(self) -> None:
        if self.is_last:
            self.is_last = False
            self.late.connect_ex(self.getsockname())
        super().close()


def test_who_comes_between_the_last_accept_and_the_end_of_the_port_is_not_reset() -> None:
    with socket.socket() as late:
        late.setblocking(False)
        asyncio.run(_drain(LastMoment(late)))
        assert overlooked(late)  # connected, it would have been reset


async def _drain(listener: socket.socket) -> None:
    listener.bind(("127.0.0.1", 0))
    server = HttpServer(lambda _: HttpResponse(200))
    await server.listen(listener)
    await server.drain(0.0, 10.0)


class LateRequest(HttpServer):
    """A server to which a request comes in the moment in which it finds that none is in flight."""

    client: socket.socket | None = None

    def in_flight(self) -> int:
        count = super().in_flight()
        if self.client is not None and not count:
            self.client.sendall(REQUEST)
            self.client = None
        return count


REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_a_request_that_comes_on_a_kept_connection_in_the_last_moment_is_answered() -> None:
    async def two_answers() -> tuple[bytes, bytes]:
        listener = socket.create_server(("127.0.0.1", 0))
        server = LateRequest(lambda _: HttpResponse(200))
        await server.listen(listener)
        client = socket.create_connection(listener.getsockname(), timeout=5)
        client.sendall(REQUEST)
        first = await asyncio.to_thread(client.recv, 1000)
        server.client = client
        await server.drain(0.0, 10.0)
        with client:
            return first, await asyncio.to_thread(client.recv, 1000)

    for answer in asyncio.run(two_answers()):
        assert answer.startswith(b"HTTP/1.1 200")
