"""Port of the platform's Prometheus server: find a free one, check readiness and the listening process."""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Final

from pilotlight.errors import PlatformError
from pilotlight.gateway.addresses import listening_inodes, listening_pids

HOST: Final = "127.0.0.1"


def free_port(wanted: int) -> int:
    """Return the wanted port, or any free one."""
    for port in (wanted, 0):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise PlatformError("no port is free for Prometheus")


async def is_ready(port: int) -> bool:
    """Whether a Prometheus on this port is ready. Plain sockets, so that no HTTP client is imported at start."""
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"GET /-/ready HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    return False


def may_listen(pid: int, port: int) -> bool:
    """Whether the process, or one of its session, listens on the port; True if that cannot be determined."""
    return pid in map(_session, listening_pids(port)) or not listening_inodes(port) or _hidden(pid)


def _session(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return 0


def _hidden(pid: int) -> bool:
    with suppress(FileNotFoundError):  # it has ended
        try:
            os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            return True
    return False
