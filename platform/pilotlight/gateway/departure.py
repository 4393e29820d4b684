"""Whether a client that sends nothing more still reads: one that has only ended its own side waits for its answer.

The end of both sides looks the same here until something is sent: it is then answered by a reset. So the client is
sent a word that says nothing, which every client of HTTP/1.1 must pass over, and the kernel is asked what came of it.
"""

import asyncio
import socket
from typing import Final

QUESTION: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_TCP_INFO: Final = 11
_CLOSED: Final = 7  # TCP_CLOSE, at the beginning of Linux' struct tcp_info


def has_gone(transport: asyncio.Transport) -> bool:
    """Whether the connection was reset, which nobody hears of who no longer reads; False where unknown."""
    connection = transport.get_extra_info("socket")
    try:
        return connection is not None and connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] == _CLOSED
    except OSError:
        return False
