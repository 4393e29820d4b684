"""Closing of a listening socket without resetting connections.

Closing a listener resets connections that are established but not accepted yet, and under load there always are some.
So a socket filter first drops new SYN packets; a client whose SYN is dropped retransmits it a second later and is then
refused, which it can distinguish from a lost request.
"""

import socket
import struct
from array import array
from contextlib import suppress
from typing import Final

HANDSHAKE_S: Final = 0.005  # duration of a TCP handshake within a cluster

_ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER of Linux, which Python's socket module lacks
_FLAGS_BYTE: Final = 13  # offset in a TCP header
_SYN: Final = 0x02
# Classic BPF (code, jump if true, jump if false, operand): load the flags; with SYN accept 0 bytes, else all.
_DROP_SYN: Final = (
    (0x30, 0, 0, _FLAGS_BYTE),
    (0x45, 0, 1, _SYN),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


def drop_new_connections(listener: socket.socket) -> None:
    """Drop new connection attempts. Without effect on other systems than Linux: closing may reset connections."""
    rules = array("B", b"".join(struct.pack("=HBBI", *rule) for rule in _DROP_SYN))
    program = struct.pack("@HP", len(_DROP_SYN), rules.buffer_info()[0])
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def accept_all(listener: socket.socket) -> list[socket.socket]:
    """Accept all connections in the backlog, then close the socket."""
    accepted: list[socket.socket] = []
    with suppress(OSError), listener:
        listener.setblocking(False)
        while True:
            accepted.append(listener.accept()[0])
    return accepted
