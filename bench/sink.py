"""A bare reference for large bodies: `python -m bench.sink PORT` reads each into one buffer and answers 200.

It has one thread, one connection at a time and no event loop, and makes no copy but the kernel's own. What a server
reaches of its rate is what that server's own work leaves of the machine's memory bandwidth over loopback.
"""

import re
import socket
import sys
from collections.abc import Sequence
from typing import Final

ROOM: Final = 64 << 20
HEAD_LIMIT: Final = 4096
LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
REPLY: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"


def main(arguments: Sequence[str]) -> int:
    with socket.create_server(("127.0.0.1", int(arguments[0]))) as listener:
        buffer = memoryview(bytearray(ROOM))
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while take(connection, buffer):
                    connection.sendall(REPLY)


def take(connection: socket.socket, buffer: memoryview) -> bool:
    """One whole request; False when the client has hung up."""
    try:
        got = connection.recv_into(buffer)
        wanted = whole_length(bytes(buffer[: min(got, HEAD_LIMIT)]))
        while 0 < got < wanted:
            more = connection.recv_into(buffer[got:wanted])
            got = got + more if more else 0
    except ConnectionError:
        return False
    return got > 0


def whole_length(start: bytes) -> int:
    """Of a request that begins with this; wrk and http.client write a head in one piece."""
    head, _, _ = start.partition(b"\r\n\r\n")
    found = LENGTH.search(head)
    return len(head) + 4 + (int(found[1]) if found else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
