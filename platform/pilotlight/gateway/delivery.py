"""Whether a request can have reached a replica that closed the connection.

The kernel counts the bytes that the peer has acknowledged, and a FIN acknowledges everything that arrived before it.
If the FIN came and no byte of the request is acknowledged, the connection was closed before the request arrived, and
the request can be sent elsewhere. Everything else may have been acted upon. A RST alone proves nothing: a process that
dies with unread bytes resets the connection without acknowledging what it had read.
"""

import socket
import struct
from typing import Final

_BYTES_ACKED: Final = 120  # offset of tcpi_bytes_acked in Linux' struct tcp_info
_SYN: Final = 1  # the SYN counts as one acknowledged byte
_TCP_INFO: Final = 11


def never_delivered(connection: socket.socket, sent_before: int, eof: bool) -> bool:
    """Whether no byte after the first `sent_before` bytes was received by the peer; False where unknown.

    `eof`: the peer's FIN has come, whether or not a RST came after it.
    """
    if not eof:
        return False
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED + 8)
    except OSError:
        return False
    if len(info) < _BYTES_ACKED + 8:  # a kernel without the field
        return False
    (acknowledged,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    return bool(acknowledged <= sent_before + _SYN)
