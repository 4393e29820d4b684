"""gRPC over HTTP/2 of our own, asked by clients that break its rules or use them to the full."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.predictor.frontends.grpc.server.conftest import INFER, STREAM
from tests.predictor.frontends.grpc.server.raw import CALL, LIVE, Raw, called, message_of, opened
from tests.predictor.fuzzing import changed, fuzz, unshaken
from tests.serving import RunningServer

from pilotlight.wire.http2 import frames as http2_frames
from pilotlight.wire.http2.hpack import literal
from pilotlight.wire.http2.streams import STREAM_WINDOW

WATCH = "/grpc.health.v1.Health/Watch"


@pytest.fixture
def raw(address: str) -> Iterator[Callable[..., Raw]]:
    made: list[Raw] = []

    def connect(**how: Any) -> Raw:
        made.append(Raw(address, **how))
        return made[-1]

    yield connect
    for each in made:
        each.socket.close()


def test_what_is_no_http2_is_told_so_and_closed(raw: Callable[..., Raw]) -> None:
    told = raw(start=b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").rest()
    head, _, body = told.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert f"content-length: {len(body)}".encode() in head
    assert b"gRPC" in body


def test_a_broken_protocol_ends_with_its_reason(raw: Callable[..., Raw]) -> None:
    client = raw().say(opened(2))
    _, payload = client.hear(http2_frames.GOAWAY)
    assert int.from_bytes(payload[4:8], "big") == http2_frames.PROTOCOL_ERROR
    assert client.rest() == b""


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (CALL.replace(b"application/grpc", b"application/json"), b"415"),
        (literal(":method", "GET") + CALL[len(literal(":method", "POST")) :], b"405"),
    ],
    ids=["no grpc", "no post"],
)
def test_a_request_that_is_no_call_gets_a_status_of_http(raw: Callable[..., Raw], block: bytes, status: bytes) -> None:
    flags, payload = (
        raw().say(opened(1, block, http2_frames.END_HEADERS | http2_frames.END_STREAM)).hear(http2_frames.HEADERS)
    )
    assert status in payload
    assert flags & http2_frames.END_STREAM


@pytest.mark.parametrize(
    "fields",
    [(("Upper", "x"),), (("connection", "close"),), ((":path", "/twice"),), (("te", "gzip"),), (("x", "a\nb"),)],
    ids=["upper", "connection", "pseudo", "te", "newline"],
)
def test_a_malformed_request_is_reset_and_the_connection_lives_on(
    raw: Callable[..., Raw], fields: tuple[tuple[str, str], ...]
) -> None:
    client = raw().say(opened(1, CALL + b"".join(literal(*field) for field in fields)))
    assert client.hear(http2_frames.RST_STREAM, 1)[1] == http2_frames.PROTOCOL_ERROR.to_bytes(4, "big")
    client.say(opened(3), message_of(3))
    assert client.hear(http2_frames.DATA, 3)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ((opened(1), message_of(1, b"x", 5)), b"13"),
        ((opened(1, flags=http2_frames.END_HEADERS | http2_frames.END_STREAM),), b"13"),
        ((opened(1), http2_frames.frame(http2_frames.DATA, http2_frames.END_STREAM, 1, bytes(10))), b"12"),
        ((opened(1), http2_frames.frame(http2_frames.DATA, http2_frames.END_STREAM, 1, b"\x01\0\0\0\x01x")), b"13"),
        ((opened(1), message_of(1, b"", 1 << 31)), b"8"),
        ((opened(1, CALL + literal("grpc-encoding", "snappy")), message_of(1)), b"12"),
        ((opened(1, CALL + literal("grpc-timeout", "soon")), message_of(1)), b"3"),
    ],
    ids=["cut off", "no message", "two messages", "packed", "too large", "encoding", "timeout"],
)
def test_what_is_no_message_is_refused_by_a_status(
    raw: Callable[..., Raw], frames: tuple[bytes, ...], code: bytes
) -> None:
    flags, payload = raw().say(*frames).hear(http2_frames.HEADERS, 1)
    assert literal("grpc-status", code.decode()) in payload
    assert flags & http2_frames.END_STREAM


def test_a_client_without_a_table_is_answered_in_full(raw: Callable[..., Raw]) -> None:
    client = raw(start=http2_frames.PREFACE + http2_frames.settings({http2_frames.HEADER_TABLE_SIZE: 0}))
    for number in (1, 3):
        client.say(opened(number), message_of(number))
        assert b"application/grpc" in client.hear(http2_frames.HEADERS, number)[1]
        assert b"grpc-status" in client.hear(http2_frames.HEADERS, number)[1]


def test_a_client_with_a_table_is_taught_once(raw: Callable[..., Raw]) -> None:
    client = raw()
    lengths = []
    for number in (1, 3):
        client.say(opened(number), message_of(number))
        lengths.append([len(client.hear(http2_frames.HEADERS, number)[1]) for _ in range(2)])
    assert lengths[1] == [2, 1]


def test_an_answer_waits_for_the_window_of_its_client(raw: Callable[..., Raw]) -> None:
    client = raw(start=http2_frames.PREFACE + http2_frames.settings({http2_frames.INITIAL_WINDOW_SIZE: 3}))
    client.say(opened(1), message_of(1))
    first = client.hear(http2_frames.DATA, 1)[1]
    client.say(http2_frames.window_update(1, 1000))
    second = client.hear(http2_frames.DATA, 1)[1]
    assert (len(first), (first + second)[:5]) == (3, bytes([0, 0, 0, 0, 2]))
    assert literal("grpc-status", "0") == client.hear(http2_frames.HEADERS, 1)[1]


def test_a_deadline_ends_the_call_and_is_counted(
    raw: Callable[..., Raw], server: RunningServer, ask: Callable[..., bytes]
) -> None:
    """Its client does not cancel it by itself."""
    block = called(INFER) + literal("grpc-timeout", "1m")
    flags, payload = raw().say(opened(1, block), message_of(1, ask([1], "slow"))).hear(http2_frames.HEADERS, 1)
    assert literal("grpc-status", "4") in payload
    assert flags & http2_frames.END_STREAM

    def counted() -> bool:
        lines = server.get("/metrics").body.decode().splitlines()
        return any('code="504"' in line and 'protocol="grpc-v2"' in line for line in lines)

    server.wait_until(counted, "counting it")


def test_a_stream_that_nobody_reads_is_not_asked_for_more(raw: Callable[..., Raw]) -> None:
    """Who watches says one thing; whatever else it says stays within its window."""
    client, size = raw(), 1 << 14
    said = http2_frames.frame(http2_frames.DATA, 0, 1, struct.pack(">BI", 0, size - 5) + bytes(size - 5))
    client.say(opened(1, called(WATCH)), http2_frames.frame(http2_frames.DATA, 0, 1, bytes(5)))
    client.hear(http2_frames.DATA, 1)
    client.say(*[said] * (STREAM_WINDOW // size - 1), http2_frames.frame(http2_frames.PING, 0, 0, b"all read"))
    assert (http2_frames.WINDOW_UPDATE, 1) not in list(iter(client.next, (http2_frames.PING, 0)))


def test_rapid_resets_end_the_connection_and_nobody_elses(
    raw: Callable[..., Raw], channel: grpc.Channel, ask: Callable[..., bytes]
) -> None:
    client = raw()
    client.say(
        *(opened(n, called(STREAM)) + http2_frames.rst_stream(n, http2_frames.CANCEL) for n in range(1, 6001, 2))
    )
    assert client.hear(http2_frames.GOAWAY)[1][4:8] == http2_frames.ENHANCE_YOUR_CALM.to_bytes(4, "big")
    assert channel.unary_unary(INFER)(ask([1]), timeout=60)


def test_a_client_that_does_not_read_is_not_read_either(
    raw: Callable[..., Raw], server: RunningServer, ask: Callable[..., bytes]
) -> None:
    """Its answers stay bounded however much it asks for."""
    client = raw(
        start=http2_frames.PREFACE
        + http2_frames.settings({http2_frames.INITIAL_WINDOW_SIZE: http2_frames.UINT31_MAX})
        + http2_frames.window_update(0, 1 << 30)
    )
    before = server.rss_bytes()
    body = ask(np.zeros(50_000))
    block = called(INFER)
    client.socket.settimeout(1)
    frames = b"".join(opened(number, block) + message_of(number, body) for number in range(1, 1001, 2))
    with pytest.raises(TimeoutError):
        client.socket.sendall(frames)
    assert server.rss_bytes() - before < 100 << 20


PIECES = [
    *(opened(number, called(path)) for number in (1, 3, 5) for path in (LIVE, INFER, STREAM, WATCH, "/no/one")),
    *(message_of(number, body) for number in (1, 3) for body in (b"", b"\x0a\x04echo", bytes(40))),
    http2_frames.frame(http2_frames.DATA, 0, 1, bytes(3)),
    http2_frames.frame(http2_frames.DATA, 0, 3, b"\0\0\0\0\x02ab\0"),
    message_of(1, b"", 1 << 30),
    http2_frames.frame(http2_frames.DATA, http2_frames.PADDED, 1, b"\x02" + bytes(7)),
    http2_frames.frame(http2_frames.DATA, http2_frames.END_STREAM, 3),
    http2_frames.rst_stream(1, http2_frames.CANCEL),
    http2_frames.rst_stream(3, http2_frames.CANCEL),
    http2_frames.window_update(0, 1),
    http2_frames.window_update(1, 5),
    http2_frames.settings({http2_frames.INITIAL_WINDOW_SIZE: 0}),
    http2_frames.settings({http2_frames.HEADER_TABLE_SIZE: 0}),
    http2_frames.settings({http2_frames.INITIAL_WINDOW_SIZE: 1 << 20}),
    http2_frames.frame(http2_frames.GOAWAY, 0, 0, bytes(8)),
    opened(7, CALL + literal("grpc-timeout", "1n")),
    opened(9, CALL + literal("grpc-encoding", "gzip")),
    opened(11, CALL, 0),
    http2_frames.frame(http2_frames.CONTINUATION, http2_frames.END_HEADERS, 11),
]


def test_no_bytes_are_our_mistake(server: RunningServer, address: str, raw: Callable[..., Raw]) -> None:
    """Whatever is said, the client is answered or sent away, and nothing of it stays."""

    def say(parts: list[bytes]) -> None:
        with Raw(address).socket as said:
            said.sendall(b"".join(parts))
            said.shutdown(socket.SHUT_WR)
            while said.recv(1 << 16):
                pass

    @fuzz(150)
    @given(parts=st.lists(st.sampled_from(PIECES) | changed(PIECES), max_size=8))
    def holds(parts: list[bytes]) -> None:
        with suppress(ConnectionError):
            say(parts)

    with unshaken(server, lambda: say(PIECES[:1])):
        holds()
    server.wait_until(lambda: server.get("/status").json()["in_flight"] == 0, "idle")
