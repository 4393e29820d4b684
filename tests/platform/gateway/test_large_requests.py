"""What a client sent of a large body is not put together again on its way to the replica."""

import asyncio
from typing import Any, cast

from pilotlight.gateway.proxy.upstream import LiveReplica, Upstream
from pilotlight.gateway.routing_table import Replica


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[Any] = []

    def write(self, data: Any) -> None:
        self.written.append(data)

    def writelines(self, pieces: Any) -> None:
        self.written.extend(pieces)


def sent(*pieces: bytes) -> list[Any]:
    upstream, wire = Upstream(LiveReplica(Replica("r", 1))), Wire()
    upstream.connection_made(wire)
    upstream.send(cast(Any, object()), list(pieces))
    return wire.written


def test_the_pieces_of_a_large_body_reach_the_socket_as_they_came() -> None:
    pieces = [b"POST / HTTP/1.1\r\n", b"\r\n", b"a" * 200_000, b"b" * 200_000]
    assert all(got is piece for got, piece in zip(sent(*pieces), pieces, strict=True))


def test_a_small_request_is_one_write() -> None:
    assert sent(b"POST / HTTP/1.1\r\n", b"\r\n", b"{}") == [b"POST / HTTP/1.1\r\n\r\n{}"]
