"""Whether a request can have been received by a replica that closed the connection on it.

The kernel counts what the other side has acknowledged. A request of which no byte was acknowledged met a connection
that was closed before it arrived, and can be sent elsewhere: nobody has read it. Anything else may have been acted
upon. The end of a connection acknowledges all that was read from it, so a process that died at its work is never
mistaken for one that had closed before.
"""

import socket
import struct
from typing import Final

_BYTES_ACKED: Final = 120  # offset of tcpi_bytes_acked in Linux' struct tcp_info
_OPENING: Final = 1  # the handshake of the side that connects counts as a byte
_TCP_INFO: Final = 11


def never_delivered(connection: socket.socket, sent_before: int) -> bool:
    """`sent_before` bytes were sent on the connection ahead of the request in question; False where unknown."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED + 8)
    except OSError:
        return False
    if len(info) < _BYTES_ACKED + 8:
        return False
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    return bool(acknowledged <= sent_before + _OPENING)
