"""The listening socket's last moments: nobody new comes in, while those who are on their way still do.

Closing a socket resets whoever has connected but was not accepted yet, and under load somebody always has. So the
kernel is first told to overlook further attempts to connect; a client whose attempt is overlooked repeats it a second
later and is then refused, which it can tell from a lost request.
"""

import socket
import struct
from array import array
from contextlib import suppress
from typing import Final

ON_THE_WAY_S: Final = 0.005  # from the first packet of a handshake to its last, within a cluster

_ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER of Linux, which Python does not name
_FLAGS_BYTE: Final = 13  # of a TCP header
_SYN: Final = 0x02
# Classic BPF (code, jump if true, jump if false, operand): load the flags; with SYN, keep 0 bytes, else all.
_NO_NEWCOMERS: Final = (
    (0x30, 0, 0, _FLAGS_BYTE),
    (0x45, 0, 1, _SYN),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


def let_nobody_new_in(listener: socket.socket) -> None:
    """Where the kernel cannot do this (it is not Linux), closing may reset one who has just connected."""
    rules = array("B", b"".join(struct.pack("=HBBI", *rule) for rule in _NO_NEWCOMERS))
    program = struct.pack("@HP", len(_NO_NEWCOMERS), rules.buffer_info()[0])
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def accept_all(listener: socket.socket) -> list[socket.socket]:
    """Everybody in the backlog; the socket is closed right behind them."""
    accepted: list[socket.socket] = []
    with suppress(OSError), listener:
        listener.setblocking(False)
        while True:
            accepted.append(listener.accept()[0])
    return accepted
