"""Whether a request can have been received by a replica that closed the connection on it.

The kernel counts what the other side has acknowledged, and an ordinary end acknowledges all that had arrived by then.
So a request met a connection that was closed before it arrived, and can be sent elsewhere, when the end came and no
byte of the request was acknowledged: nobody has read it. Anything else may have been acted upon. A reset alone proves
nothing: a process that dies with bytes unread ends so, and acknowledges nothing of what it had read.
"""

import socket
import struct
from typing import Final

_BYTES_ACKED: Final = 120  # offset of tcpi_bytes_acked in Linux' struct tcp_info
_OPENING: Final = 1  # the handshake of the side that connects counts as a byte
_TCP_INFO: Final = 11


def never_delivered(connection: socket.socket, sent_before: int, ended: bool) -> bool:
    """`sent_before` bytes were sent on the connection ahead of the request in question; False where unknown.

    `ended`: the other side's ordinary end has come, whether or not a reset came after it.
    """
    if not ended:
        return False
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED + 8)
    except OSError:
        return False
    if len(info) < _BYTES_ACKED + 8:
        return False
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    return bool(acknowledged <= sent_before + _OPENING)
