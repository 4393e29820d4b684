"""Whether a client that has sent FIN still reads: a half-closed client waits for its response.

A half-closed and a fully closed connection look the same until something is written; the latter answers with RST. So
the gateway writes an interim response, which every HTTP/1.1 client must skip, and reads the TCP state afterwards.
"""

import asyncio
import socket
from typing import Final

INTERIM_RESPONSE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_TCP_INFO: Final = 11
_CLOSED: Final = 7  # TCP_CLOSE, the first byte of Linux' struct tcp_info


def is_reset(transport: asyncio.Transport) -> bool:
    """Whether the peer reset the connection; False where unknown. The event loop does not notice while not reading."""
    connection = transport.get_extra_info("socket")
    try:
        return connection is not None and connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] == _CLOSED
    except OSError:
        return False
