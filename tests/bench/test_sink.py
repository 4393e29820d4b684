"""The bare reader that large tensors are held against."""

import socket
import threading
from collections.abc import Iterator

import pytest
from bench.sink import take, whole_length


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_length_is_head_and_body() -> None:
    head = b"POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\n"
    assert whole_length(head + b"abc") == len(head) + 12
    assert whole_length(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n") == len("GET / HTTP/1.1\r\nHost: a\r\n\r\n")


def test_a_body_in_many_pieces_is_read_to_its_end_and_no_further(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    body = b"x" * 3_000_000
    head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    sender = threading.Thread(target=theirs.sendall, args=(head + body,))
    sender.start()
    assert take(ours, memoryview(bytearray(4 << 20)))
    sender.join()
    theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert take(ours, memoryview(bytearray(1 << 16)))


def test_a_client_that_hangs_up_ends_it(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
    theirs.close()
    assert not take(ours, memoryview(bytearray(1 << 16)))
